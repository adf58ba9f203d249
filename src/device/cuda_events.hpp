// SPDX-License-Identifier: Apache-2.0
// cuda_events.hpp: numbered points in streams, over a pool of CUDA events.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "device/cuda_context.hpp"
#include "headrace/device.hpp"

namespace headrace::device::cuda {
// Numbers count from 1. When the GPU has passed an event, its CUDA event returns to the pool. So
// there are only as many CUDA events as points that the GPU has not passed.
// Threads: any, with the GPU in use (Context::Use).
class Events {
 public:
  explicit Events(Context& context) : context_(context) {}
  ~Events();

  std::uint64_t record(cudaStream_t stream);
  // Throws kWrongState for an event that was never recorded.
  void wait(cudaStream_t stream, std::uint64_t event);
  // Blocks the caller until the GPU has passed the event.
  void synchronize(std::uint64_t event);

 private:
  cudaEvent_t take();
  // Call it with mutex_ held. Null if the GPU has passed the event.
  cudaEvent_t find(std::uint64_t event) const;

  Context& context_;
  std::mutex mutex_;
  std::deque<cudaEvent_t> recorded_;  // of events first_, first_ + 1, ...
  std::uint64_t first_ = 1;
  std::vector<cudaEvent_t> free_;
};

// For each stream, the last event of one kind. synchronize() of the stream waits for it too.
// Threads: as Events.
class LastEvents {
 public:
  explicit LastEvents(Events& events) : events_(events) {}

  void set(Stream stream, std::uint64_t event);
  std::uint64_t of(Stream stream);  // 0: none is pending
  void synchronize(Stream stream);

 private:
  Events& events_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uint64_t> last_;
};
}  // namespace headrace::device::cuda
