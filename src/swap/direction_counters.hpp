// SPDX-License-Identifier: Apache-2.0
// direction_counters.hpp: counts the bytes that a drive moves in one direction, and the time it
// takes. The drive's thread writes them, any thread reads them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace headrace::swap {
// Wall time during which at least one request of a kind was in flight.
class BusyTime {
 public:
  void begin() {
    if (running_++ > 0) return;
    const std::lock_guard lock(mutex_);
    since_ = Clock::now();
    busy_ = true;
  }
  void end() {
    if (--running_ > 0) return;
    const std::lock_guard lock(mutex_);
    total_ += Clock::now() - since_;
    busy_ = false;
  }
  double seconds() const {
    const std::lock_guard lock(mutex_);
    const Clock::duration open = busy_ ? Clock::now() - since_ : Clock::duration::zero();
    return std::chrono::duration<double>(total_ + open).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::uint32_t running_ = 0;  // the drive's thread only
  mutable std::mutex mutex_;
  Clock::time_point since_;
  Clock::duration total_{0};
  bool busy_ = false;
};

struct DirectionCounters {
  std::atomic<std::uint64_t> bytes{0}, requests{0};
  BusyTime busy;
};
}  // namespace headrace::swap
