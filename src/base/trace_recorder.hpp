// SPDX-License-Identifier: Apache-2.0
// trace_recorder.hpp: collects the events of headrace/trace.hpp, up to a maximum number.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "headrace/trace.hpp"

namespace headrace::base {
// For use by any thread. Allocates only in its constructor and when events are taken.
class TraceRecorder {
 public:
  explicit TraceRecorder(std::uint64_t capacity);
  static std::uint64_t bookkeeping_bytes(std::uint64_t capacity) noexcept {
    return capacity * sizeof(TraceEvent);
  }
  void set_step(std::uint64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  std::uint64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }
  void add(const TraceEvent& event) noexcept;
  // Returns the events since the last call.
  Trace take();

 private:
  const std::uint64_t capacity_;
  std::atomic<std::uint64_t> step_{1};
  std::mutex mutex_;
  Trace trace_;
};

// Records an event from here to the end of the scope, unless `recorder` is null.
class TraceSpan {
 public:
  TraceSpan(TraceRecorder* recorder, TraceLane lane, const char* what,
            std::uint32_t group = TraceEvent::kNone, std::uint32_t tile = TraceEvent::kNone,
            std::uint64_t bytes = 0) noexcept
      : recorder_(recorder) {
    if (recorder_ == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    event_ = {lane, what, group, tile, recorder_->step(), bytes, now, now};
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (recorder_ == nullptr) return;
    event_.end = std::chrono::steady_clock::now();
    recorder_->add(event_);
  }

 private:
  TraceRecorder* recorder_;
  TraceEvent event_;
};
}  // namespace headrace::base
