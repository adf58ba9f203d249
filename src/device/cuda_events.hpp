// SPDX-License-Identifier: Apache-2.0
// cuda_events.hpp: numbered points in streams over a pool of CUDA's events.
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
// Numbers rise from 1. An event that the GPU has passed gives its CUDA event back, so there are as
// many of those as points that are still to be passed.
// Threads: any, with the GPU in use (Context::Use).
class Events {
 public:
  explicit Events(Context& context) : context_(context) {}
  ~Events();

  std::uint64_t record(cudaStream_t stream);
  // Throws kWrongState for one that was never recorded.
  void wait(cudaStream_t stream, std::uint64_t event);
  // Blocks the caller until the GPU has passed it.
  void synchronize(std::uint64_t event);

 private:
  cudaEvent_t take();
  // With mutex_ held; null where the GPU has passed it.
  cudaEvent_t find(std::uint64_t event) const;

  Context& context_;
  std::mutex mutex_;
  std::deque<cudaEvent_t> recorded_;  // of events first_, first_ + 1, ...
  std::uint64_t first_ = 1;
  std::vector<cudaEvent_t> free_;
};

// Per stream the last event of a kind: work that its synchronize() waits for beside the stream.
// Threads: as Events.
class LastEvents {
 public:
  explicit LastEvents(Events& events) : events_(events) {}

  void set(Stream stream, std::uint64_t event);
  std::uint64_t of(Stream stream);  // 0: none is under way
  void synchronize(Stream stream);

 private:
  Events& events_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uint64_t> last_;
};
}  // namespace headrace::device::cuda
