// SPDX-License-Identifier: Apache-2.0
// headrace/trace.hpp: the engine's timeline. Each operation that takes time is one event, on the
// lane for its kind.
//
//   Engine engine(settings, {.trace_events = 100'000});
//   ... a step ...
//   Trace trace = engine.take_trace();
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace headrace {
enum class TraceLane : std::uint8_t {
  kTrainer,    // a trainer's call, from its start to its return
  kNvmeRead,   // from the request until the bytes arrive, including the wait for the drive
  kNvmeWrite,  // likewise, until the bytes are written
  kUpdate,     // one pass over a tile's bytes, on all update threads that take part
  kRanks,      // a join or a reduction that the ranks make ahead of their trainers' calls
};
// "trainer", "NVMe read", ...
const char* lane_name(TraceLane lane) noexcept;

struct TraceEvent {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  using Time = std::chrono::steady_clock::time_point;
  TraceLane lane = TraceLane::kTrainer;
  const char* what = "";        // "gather", "prefetch weight", "read state": a literal
  std::uint32_t group = kNone;  // GroupId's index
  std::uint32_t tile = kNone;   // a number within the engine
  std::uint64_t step = 0;       // the step of the event: 1 until the first step() has returned
  std::uint64_t bytes = 0;      // moved, or processed
  Time begin, end;
};

struct Trace {
  std::vector<TraceEvent> events;  // in the order in which they ended
  std::uint64_t lost = 0;          // events for which there was no room
};
}  // namespace headrace
