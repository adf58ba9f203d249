// SPDX-License-Identifier: Apache-2.0
// headrace/nccl.hpp: the collective between GPUs, over NVIDIA's NCCL.
//
//   // Rank 0 makes the id, and every rank is handed the same one: by file, MPI, torch's store.
//   const NcclId id = rank == 0 ? nccl_unique_id() : received_from_rank_0();
//   EngineOptions options{.device = device};
//   options.collective = make_nccl_collective({.rank = rank, .world_size = world, .id = id,
//                                              .device = device});
//
// The library looks for NCCL 2.18 or newer at run time, so a build needs neither it nor CUDA.
//
// Memory:  nccl_scratch_bytes() on the device, and NCCL's own buffers, which no plan counts.
// Threads: the seam's (headrace/collective.hpp). One of its own, headrace-nccl, blocks signals and
//          ends with the object.
// Checks:  all_gather() and all_to_all() return once their work is queued, and compare nothing.
//          exchange() compares the ranks' calls, its own and all queued since the last of them, and
//          names the first that differs on both sides. The results of calls that were queued after
//          the difference have no meaning.
// Failure: kPeerLost, then and ever after.
//          - abort() returns at once. This rank's calls, and the object's destructor, then wait up
//            to 5 seconds for the others' next call that blocks, which tells them why.
//          - An error that NCCL reports (a process that died) ends every call within half a second.
//          - Otherwise the deadline reveals a missing rank. Ranks that wait in a blocking call name
//            it. If it arrives late, its first call may still succeed, but the next one fails.
//          - Work queued on streams ends too, so that a program can wait for a stream; its results
//            have no meaning.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "headrace/collective.hpp"
#include "headrace/device.hpp"

namespace headrace {
// Equal on all ranks of a world, and new for every world. Plain bytes; send them as they are.
using NcclId = std::array<unsigned char, 128>;

struct NcclOptions {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  NcclId id = {};
  // The engine's: its streams are CUDA streams (Stream::handle is the cudaStream_t), on the GPU
  // that is current on the thread that calls make_nccl_collective(). One rank per GPU. Streams that
  // it creates do not wait for its default stream (cudaStreamNonBlocking): ranks could not talk
  // while work there waits for one of them.
  std::shared_ptr<Device> device = nullptr;
  // How long a call waits for the other ranks; for queued work, counted from the call, or from the
  // end of the queued call before it.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // Path of the library. Empty: libnccl.so.2 where the loader finds it, or torch's in a process
  // that has loaded torch.
  std::string library = {};
};

// The id of a new world. Rank 0 calls it, and its process must live on: the ranks find each other
// through it.
// Throws headrace::Error kUnsupported: the library is missing, too old, or fails.
NcclId nccl_unique_id(const std::string& library = {});

// This rank's collective. Blocks until all ranks have called it, each in a process or thread of its
// own. Its destructor waits up to 5 seconds for the other ranks' next call or destructor, to tell
// them.
// Throws headrace::Error
//   kInvalidArgument  a rank outside the world, no device, no deadline; the calling thread's GPU is
//                     not the device's.
//   kUnsupported      the library is missing, lacks a function, is too old, or cannot serve this
//                     machine: the text repeats its message.
//   kOutOfBudget      the device has no room for the scratch.
//   kPeerLost         a rank did not come within the deadline.
std::shared_ptr<Collective> make_nccl_collective(const NcclOptions& options);

// Device memory that a rank's collective takes for the ranks' messages: 8 KiB for each rank.
std::uint64_t nccl_scratch_bytes(std::uint32_t world_size) noexcept;
}  // namespace headrace
