// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_events.hpp"

#include "device/device_rules.hpp"

namespace headrace::device::cuda {
Events::~Events() {
  for (const cudaEvent_t event : recorded_) (void)cudaEventDestroy(event);
  for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

cudaEvent_t Events::take() {
  while (!recorded_.empty() && cudaEventQuery(recorded_.front()) == cudaSuccess) {
    free_.push_back(recorded_.front());
    recorded_.pop_front();
    ++first_;
  }
  if (free_.empty()) {
    cudaEvent_t made = nullptr;
    // A thread that waits for one sleeps: by default, CUDA would keep a CPU busy.
    constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
    context_.check(cudaEventCreateWithFlags(&made, kFlags), "making an event");
    return made;
  }
  const cudaEvent_t event = free_.back();
  free_.pop_back();
  return event;
}

std::uint64_t Events::record(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const cudaEvent_t event = take();
  const cudaError_t result = cudaEventRecord(event, stream);
  if (result != cudaSuccess) free_.push_back(event);
  context_.check(result, "recording an event");
  recorded_.push_back(event);
  return first_ + recorded_.size() - 1;
}

cudaEvent_t Events::find(std::uint64_t event) const {
  const std::uint64_t end = first_ + recorded_.size();
  if (event == 0 || event >= end) throw_unrecorded_event({event}, end - 1);
  return event < first_ ? nullptr : recorded_[event - first_];
}

void Events::wait(cudaStream_t stream, std::uint64_t event) {
  const std::lock_guard lock(mutex_);  // or it might be recorded anew in between
  const cudaEvent_t found = find(event);
  if (found != nullptr)
    context_.check(cudaStreamWaitEvent(stream, found, 0), "waiting for an event");
}

// CUDA takes the point that is recorded when it is called: should another thread record this event
// anew in between, the old point was passed, and the new one comes.
void Events::synchronize(std::uint64_t event) {
  cudaEvent_t found = nullptr;
  {
    const std::lock_guard lock(mutex_);
    found = find(event);
  }
  if (found != nullptr) context_.check(cudaEventSynchronize(found), "waiting for an event");
}

void LastEvents::set(Stream stream, std::uint64_t event) {
  const std::lock_guard lock(mutex_);
  last_[stream.handle] = event;
}

std::uint64_t LastEvents::of(Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = last_.find(stream.handle);
  return found == last_.end() ? 0 : found->second;
}

void LastEvents::synchronize(Stream stream) {
  const std::uint64_t event = of(stream);
  if (event == 0) return;
  events_.synchronize(event);
  const std::lock_guard lock(mutex_);
  const auto still = last_.find(stream.handle);
  if (still != last_.end() && still->second == event) last_.erase(still);
}
}  // namespace headrace::device::cuda
