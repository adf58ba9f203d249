// SPDX-License-Identifier: Apache-2.0
// cuda_callbacks.hpp: calls host functions in a stream's order, and loses none if the GPU fails.
//
// CUDA calls no function queued behind an error. So while any is pending, a thread checks regularly
// whether the GPU still works. If it fails, that thread calls the functions that others wait for.
#pragma once
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/cuda_context.hpp"

namespace headrace::device::cuda {
// Threads: queue() from any, with the GPU in use (Context::Use).
class Callbacks {
 public:
  enum class OnFailure {
    kCall,  // called, although the stream never gets there
    kDrop,
  };
  explicit Callbacks(Context& context);
  // Returns when all functions have been called or dropped.
  ~Callbacks();
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  // `work` must not block on the GPU, call CUDA or throw. If queue() throws, `work` is not called.
  // Otherwise it is called, or dropped as `on_failure` says.
  void queue(cudaStream_t stream, OnFailure on_failure, std::function<void()> work);

 private:
  struct Call {
    Callbacks* owner = nullptr;
    OnFailure on_failure = OnFailure::kCall;
    std::function<void()> work;
    enum class State { kIdle, kQueued, kTaken } state = State::kIdle;
  };
  static void run(void* call);
  void run(Call& call);
  void finish(Call& call);  // call with mutex_ held
  void watch();
  void take_all_lost();

  Context& context_;
  cudaStream_t probe_ = nullptr;
  std::mutex mutex_;  // protects the rest
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Call>> calls_;  // all calls that were created
  std::vector<Call*> idle_;
  std::uint64_t to_come_ = 0;
  bool closing_ = false;
  std::thread watcher_;
};
}  // namespace headrace::device::cuda
