// SPDX-License-Identifier: Apache-2.0
// simulated_cuda_state.hpp: state that the simulated runtime's calls and its kernels share.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "device/simulated_cuda.hpp"
#include "device/simulated_queues.hpp"

namespace headrace::device::simulated_cuda {
struct Gpu {
  std::unique_ptr<Queues> queues;  // of all GPUs; before the mutex is taken
  struct Own {
    std::atomic<cudaError_t> failed = cudaSuccess;
    bool has_context = false;
  };
  std::array<Own, kGpusMax> of;
  std::mutex mutex;  // the rest, and has_context
  GpuOptions options;
  struct Allocation {
    std::size_t bytes = 0;
    int gpu = 0;
  };
  std::map<std::uintptr_t, Allocation> allocations;     // by their begin
  std::map<std::uintptr_t, std::size_t> registrations;  // begin, bytes
  std::map<std::uintptr_t, int> streams;                // and their priorities
  std::set<std::uintptr_t> capturing;                   // streams
  struct FailingCall {
    cudaError_t error;
    std::uint64_t calls;
  };
  std::map<std::string, FailingCall> failing_calls;
  Counters counters;
};
Gpu& gpu();
// What this call of CUDA has to end in before it does anything.
cudaError_t before(const char* function);
cudaError_t ends_in(cudaError_t error);
}  // namespace headrace::device::simulated_cuda
