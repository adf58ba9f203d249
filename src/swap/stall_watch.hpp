// SPDX-License-Identifier: Apache-2.0
// stall_watch.hpp: measures how long requests have been in the queue, selects those to warn about
// and to give up, and writes the messages.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "swap/block.hpp"

namespace headrace::swap {
// The drive's thread only.
class StallWatch {
 public:
  StallWatch(double warn_seconds, double deadline_seconds, DriveClock::time_point now);

  // The interval between checks while anything is in flight.
  std::chrono::nanoseconds interval() const noexcept { return interval_; }

  // Call it in every round of the drive. It calls slow(block, age) once for each block that has
  // been in the queue for longer than the warning time, and lost(block, age) for each one past the
  // deadline. If `in_flight` is false, it watches nothing.
  template <class Slow, class Lost>
  void look(DriveClock::time_point now, std::span<Block> blocks, bool in_flight, Slow&& slow,
            Lost&& lost) {
    if (!due(now, blocks, in_flight)) return;
    for (Block& block : blocks) {
      if (block.state != BlockState::kInQueue) continue;
      const std::chrono::nanoseconds age = now - block.since;
      if (age >= deadline_) {
        lost(block, age);
      } else if (age >= warn_ && !block.warned) {
        block.warned = true;
        slow(block, age);
      }
    }
  }

  std::string slow_text(const std::string& request) const;
  static std::string lost_text(const std::string& request);

 private:
  bool due(DriveClock::time_point now, std::span<Block> blocks, bool in_flight) noexcept;

  std::chrono::nanoseconds warn_, deadline_, interval_;
  DriveClock::time_point last_look_, next_check_;
};

// "swap drive 0: a read of 4096 bytes at offset 8192 of FILE for tile 3 ... has not completed for
// 10 s (2 requests in flight, queue uring)".
struct QueueState {
  std::uint32_t drive = 0;
  const std::string& path;
  const std::string& queue;
  std::uint32_t in_queue = 0;
  int flush_error = 0;  // the errno with which the kernel accepts no more requests
};
std::string describe(const Block& block, std::chrono::nanoseconds age, const QueueState& state);
}  // namespace headrace::swap
