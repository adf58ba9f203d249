// SPDX-License-Identifier: Apache-2.0
// simulated_gpu.hpp: torch's cuda:0, in a process without LibTorch's CUDA part, with streams and
// memory of its own on device_host's late flavour: what the adapter does on a GPU, without one.
//
// An operator first waits for what the thread's current stream holds, then computes on the CPU. So
// one that uses what is still on its way on another stream reads something else. Memory that torch
// frees is overwritten when its stream comes there, unless record_stream() says who reads it.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "device/computing_device.hpp"

namespace headrace_test {
// Torch's operators run on this one from now on. Tensors of the one before must be gone.
void plug_in(const std::shared_ptr<headrace::device::ComputingDevice>& device);
inline at::Device simulated_gpu() { return {at::kCUDA, 0}; }
}  // namespace headrace_test
