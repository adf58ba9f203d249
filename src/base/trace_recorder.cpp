// SPDX-License-Identifier: Apache-2.0
#include "base/trace_recorder.hpp"

#include <utility>

namespace headrace {
const char* lane_name(TraceLane lane) noexcept {
  switch (lane) {
    case TraceLane::kTrainer:
      return "trainer";
    case TraceLane::kNvmeRead:
      return "NVMe read";
    case TraceLane::kNvmeWrite:
      return "NVMe write";
    case TraceLane::kUpdate:
      return "update";
    case TraceLane::kRanks:
      return "ranks";
  }
  return "unknown";
}
}  // namespace headrace

namespace headrace::base {
TraceRecorder::TraceRecorder(std::uint64_t capacity) : capacity_(capacity) {
  trace_.events.reserve(capacity_);
}

void TraceRecorder::add(const TraceEvent& event) noexcept {
  const std::lock_guard lock(mutex_);
  if (trace_.events.size() == capacity_) {
    ++trace_.lost;
  } else {
    trace_.events.push_back(event);
  }
}

Trace TraceRecorder::take() {
  Trace fresh;
  fresh.events.reserve(capacity_);
  const std::lock_guard lock(mutex_);
  return std::exchange(trace_, std::move(fresh));
}
}  // namespace headrace::base
