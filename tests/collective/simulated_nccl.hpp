// SPDX-License-Identifier: Apache-2.0
// simulated_nccl.hpp: controls for tests in libsimulated_nccl.so, beside NCCL's own functions.
#pragma once
#include "device/computing_device.hpp"

extern "C" {
// As cudaSetDevice: communicators that this thread makes work on `device`. Where its streams run
// beside each other (`may_block`), an operation waits for the other ranks on the stream, as on a
// GPU. Else it is launched when they have come, and in progress until then.
void simulated_nccl_set_device(headrace::device::ComputingDevice* device, bool may_block);
// The GPU that communicators which this thread makes say they are on; 0 unless told.
void simulated_nccl_set_ordinal(int ordinal);
// Every communicator of the world made with this id reports `error`.
void simulated_nccl_break(const void* unique_id, int error);
// How many groups the ranks of the world made with this id have launched in all.
int simulated_nccl_launched(const void* unique_id);
// How many of these were on registered memory, and how many registrations there are.
int simulated_nccl_launched_registered(const void* unique_id);
int simulated_nccl_registrations(const void* unique_id);
// The next registration of any communicator ends in `error`; 0: it succeeds without a handle, as
// with NCCL_LOCAL_REGISTER=0.
void simulated_nccl_refuse_registration(int error);
// The next operation of any communicator ends in `error`.
void simulated_nccl_refuse_next(int error);
void simulated_nccl_set_version(int version);
}
