// SPDX-License-Identifier: Apache-2.0
// simulated_cuda.hpp: a GPU without a GPU: CUDA's runtime calls, carried out by two threads of this
// process, late and in odd order (simulated_queues.hpp). A test that links this in place of the
// toolkit's runtime runs the library's own CUDA code.
//
// It is strict where the real one is, and where the real one only sometimes is: device memory can
// be touched by work on its GPU alone (at its ends the CPU faults); a copy that reaches over the
// end of a registration is refused; registrations are of whole pages; copies of memory that is not
// registered wait; what belongs to one GPU is refused where another is current; a failed GPU runs
// nothing more, not the host's functions either.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "headrace/cuda.hpp"

namespace headrace::device::simulated_cuda {
constexpr int kGpusMax = 2;

struct GpuOptions {
  std::uint64_t seed = 1;
  std::uint32_t late_microseconds_max = 100;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  int compute_major = 9, compute_minor = 0;
  cudaError_t missing = cudaSuccess;  // what looking for a GPU ends in
  int driver_version = 13000;
  bool protects = true;  // device memory from the CPU: not where torch's operators run on it
  int gpus = 1;          // at most kGpusMax
  std::uint32_t hardware_queues = 0;  // that a GPU's streams share; 0: one for each stream
  std::uint64_t registered_bytes_max = UINT64_MAX;
  cudaError_t registration_refused_by = cudaErrorMemoryAllocation;  // what is above them
  bool pageable_copies_wait = false;  // for the stream, also towards the GPU
};
// Everything before is forgotten; nothing may be under way.
void plug_in(const GpuOptions& options = {});

// The call of CUDA's function `name` after `calls` others ends in `error`, and does nothing. Where
// a real context would be lost by it, the GPU has failed then.
void fail_call(const char* name, cudaError_t error, std::uint64_t calls = 0);
// As a kernel would that reads where it must not: the GPU fails when `stream` comes here.
void fail_gpu(std::uintptr_t stream, cudaError_t error);

// Of CPU time, that a host function should not exceed: all others wait meanwhile.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kHostFunctionMicroseconds = 1000;
#else
constexpr std::uint64_t kHostFunctionMicroseconds = 200;
#endif

struct Counters {
  std::uint64_t to_gpu_bytes = 0, to_host_bytes = 0;  // over the link
  std::uint64_t unregistered_copies = 0;              // that waited
  std::uint64_t allocated_bytes = 0, allocated_bytes_max = 0;
  std::uint64_t streams = 0, events = 0;  // that exist
  std::uint64_t registered_bytes = 0;
  std::uint64_t spinning_waits = 0;           // calls that would keep a CPU busy until they return
  std::uint64_t calls_in_host_functions = 0;  // which CUDA forbids: they are refused
  std::uint64_t host_functions = 0;           // that were called
  std::uint64_t long_host_functions = 0;      // of those: longer than kHostFunctionMicroseconds
};
Counters counters();

constexpr int kUrgent = -5;  // 0 is a stream's priority by default
int priority_of(std::uintptr_t stream);

// Whether a thread has made it current, or called it.
bool has_context(int ordinal);

// A kernel of the program's own: may touch its GPU's memory.
cudaError_t launch(std::uintptr_t stream, std::function<void()> kernel);
}  // namespace headrace::device::simulated_cuda
