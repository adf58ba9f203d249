// SPDX-License-Identifier: Apache-2.0
// headrace/nccl.hpp: a transport between GPUs, over NVIDIA's NCCL.
//
//   // Rank 0 makes the id, and every rank is handed the same one: by file, MPI, torch's store.
//   const NcclId id = rank == 0 ? nccl_unique_id() : received_from_rank_0();
//   auto transport = make_nccl_transport(
//       {.id = id, .messages = make_mpi_transport(MPI_COMM_WORLD), .device = device});
//   EngineOptions options{.device = device};
//   options.collective = make_collective({.transport = transport});
//
// NCCL carries kGather and kReduce, whose pieces lie in the device's memory. Lane kTalk and the
// posts pass through `messages`, a transport between the same ranks in host memory: over NCCL they
// would wait on the GPU behind data. The library looks for NCCL 2.18 or newer at run time, so a
// build needs neither it nor CUDA.
//
// Memory:  NCCL's own buffers, which no plan counts.
// Order:   a call is launched once every rank has made it and its streams have come there, and all
//          ranks launch in the order that rank 0 gives. NCCL asks for one order of all operations
//          on a GPU. It costs two short messages for each call, and no kernel spins on the GPU
//          while a rank is late.
// Threads: one of its own, headrace-nccl, blocks signals and ends with the object.
// Failure: an error that NCCL reports (a process that died) ends every call of kGather and kReduce
//          within a quarter of a second, one of `messages` at once. abort() ends those too that
//          wait on the GPU.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "headrace/device.hpp"
#include "headrace/transport.hpp"

namespace headrace {
// Equal on all ranks of a world, and new for every world. Plain bytes; send them as they are.
using NcclId = std::array<unsigned char, 128>;

struct NcclOptions {
  NcclId id = {};
  // Says which rank this is, and of how many: over MPI, Gloo or threads. The transport's own from
  // here on: nobody else makes calls of it or keeps it.
  std::shared_ptr<Transport> messages = nullptr;
  // The engine's: its streams are CUDA streams (Stream::handle is the cudaStream_t), on the GPU
  // that is current on the thread that calls make_nccl_transport(). One rank per GPU. Streams that
  // it creates do not wait for its default stream (cudaStreamNonBlocking): ranks could not go on
  // while work there waits for one of them.
  std::shared_ptr<Device> device = nullptr;
  // How long make_nccl_transport() waits for the other ranks.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // Path of the library. Empty: libnccl.so.2 where the loader finds it, or torch's in a process
  // that has loaded torch.
  std::string library = {};
};

// The id of a new world. Rank 0 calls it, and its process must live on: the ranks find each other
// through it.
// Throws headrace::Error kUnsupported: the library is missing, too old, or fails.
NcclId nccl_unique_id(const std::string& library = {});

// This rank's transport. Blocks until all ranks have called it, each in a process or thread of its
// own. Its destructor gives NCCL up to 5 seconds to end in order.
// Throws headrace::Error
//   kInvalidArgument  no messages, no device, no deadline; the calling thread's GPU is not the
//                     device's.
//   kUnsupported      the library is missing, lacks a function, is too old, or cannot serve this
//                     machine: the text repeats its message.
//   kPeerLost         a rank did not come within the deadline.
std::shared_ptr<Transport> make_nccl_transport(const NcclOptions& options);
}  // namespace headrace
