// SPDX-License-Identifier: Apache-2.0
// headrace/nccl.hpp: a transport between GPUs, over NVIDIA's NCCL.
//
//   // Rank 0 makes the id, and sends it to every rank: through a file, MPI or torch's store.
//   const NcclId id = rank == 0 ? nccl_unique_id() : received_from_rank_0();
//   auto transport = make_nccl_transport(
//       {.id = id, .messages = make_mpi_transport(MPI_COMM_WORLD), .device = device});
//   EngineOptions options{.device = device};
//   options.collective = make_collective({.transport = transport});
//
// NCCL carries kGather and kReduce, whose pieces lie in the device's memory. Lane kTalk and the
// posts pass through `messages`, a transport between the same ranks in host memory, because over
// NCCL they would wait on the GPU behind data. The library looks for NCCL 2.18 or newer at run
// time, so a build needs neither NCCL nor CUDA.
//
// Memory:  NCCL's own buffers, which no plan counts. With NcclOptions::register_memory, NCCL may
//          read and write the engine's memory directly instead.
// Order:   a call is launched once every rank has made it and the call's streams have reached it.
//          NCCL requires one order for all operations on a GPU, so all ranks launch calls in the
//          order that rank 0 gives. This costs two short messages for each call, but no kernel
//          spins on the GPU while a rank is late.
// Threads: one of its own, headrace-nccl, which blocks signals and ends with the object.
// Failure: an error that NCCL reports (such as the death of a process) ends every call of kGather
//          and kReduce within a quarter of a second. An error in `messages` ends them at once.
//          abort() also ends calls that wait on the GPU.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "headrace/device.hpp"
#include "headrace/transport.hpp"

namespace headrace {
// Equal on all ranks of a world, and new for every world. Plain bytes; send them as they are.
using NcclId = std::array<unsigned char, 128>;

struct NcclOptions {
  NcclId id = {};
  // A transport over MPI, Gloo or threads. It also gives this rank and the number of ranks. From
  // here on, it belongs to the new transport, and nothing else may call it or keep it.
  std::shared_ptr<Transport> messages = nullptr;
  // The engine's device, with one rank per GPU. Its streams must be CUDA streams (Stream::handle is
  // the cudaStream_t), on the GPU that is current on the thread that calls make_nccl_transport().
  // Streams that the device creates must not wait for its default stream (cudaStreamNonBlocking).
  // Otherwise, ranks could not go on while work on the default stream waits for one of them.
  std::shared_ptr<Device> device = nullptr;
  // How long make_nccl_transport() waits for the other ranks.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // Path of the library. Empty: libnccl.so.2 where the loader finds it, or torch's copy in a
  // process that has loaded torch.
  std::string library = {};
  // Registers the engine's gather slots and gradient bucket with NCCL (ncclCommRegister, NCCL 2.19
  // or newer). Where NCCL can, it then sends from there and receives into there without copies
  // through its own buffers, so that fewer of the GPU's units are busy with them. NCCL allows this
  // only if the memory of all ranks is registered. So if one rank does not ask for it, or its NCCL
  // refuses, all ranks go on without from the next call, and `warn` says why. Changes no result.
  // Between machines, NCCL uses memory that cudaMalloc gave, as the engine's. Within one, it does
  // so only with NCCL_LEGACY_CUDA_REGISTER=1 in the environment.
  // The thread that calls Engine::freeze() and wake() must have made the device's GPU current.
  bool register_memory = false;
  // Gets one line, without a newline, if this rank goes on without: on any thread. It must neither
  // block nor throw. Null: the line goes to stderr.
  std::function<void(const std::string& line)> warn = nullptr;
};

// Returns the id of a new world. Only rank 0 makes this call. Its process must stay alive, because
// the ranks find each other through that process.
// Throws headrace::Error kUnsupported: the library is missing, too old, or fails.
NcclId nccl_unique_id(const std::string& library = {});

// Returns this rank's transport. Blocks until all ranks have made this call, each in a process or
// thread of its own. The transport's destructor gives NCCL up to 5 seconds to shut down cleanly.
// Throws headrace::Error
//   kInvalidArgument  no messages, no device or no deadline; or the calling thread's GPU is not the
//                     device's.
//   kUnsupported      the library is missing, lacks a function, is too old (also for
//                     register_memory), or cannot serve this machine. The error repeats the
//                     library's message.
//   kPeerLost         a rank did not join within the deadline.
std::shared_ptr<Transport> make_nccl_transport(const NcclOptions& options);
}  // namespace headrace
