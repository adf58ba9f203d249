// SPDX-License-Identifier: Apache-2.0
// simulated_cuda_state.hpp: what the simulated runtime's calls and its kernels share.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/simulated_cuda.hpp"

namespace headrace::device::simulated_cuda {
struct Gpu {
  std::shared_ptr<DeviceHost> queues;  // streams and events; before the mutex is taken
  std::atomic<cudaError_t> failed = cudaSuccess;
  std::mutex mutex;  // the rest
  GpuOptions options;
  std::map<std::uintptr_t, std::size_t> allocations, registrations;  // begin, bytes
  std::map<std::uintptr_t, int> streams;  // and their priorities
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
// On the GPU's thread: device memory can be touched for the length of this.
void run_on_gpu(const std::function<void()>& work);
}  // namespace headrace::device::simulated_cuda
