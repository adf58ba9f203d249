// SPDX-License-Identifier: Apache-2.0
// rank_waits.hpp: how long a trainer's threads wait for other ranks, by call.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

#include "headrace/stats.hpp"

namespace headrace::ranks {
class WaitedFor {
 public:
  // Adds the time of its scope. Any thread.
  class Span {
   public:
    explicit Span(WaitedFor& in) noexcept : in_(in) {}
    ~Span() {
      const auto spent = std::chrono::steady_clock::now() - began_;
      in_.nanoseconds_ += static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    WaitedFor& in_;
    const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  };
  std::chrono::nanoseconds spent() const noexcept {
    return std::chrono::nanoseconds(nanoseconds_.load());
  }
  double seconds() const noexcept { return 1e-9 * static_cast<double>(nanoseconds_.load()); }

 private:
  std::atomic<std::uint64_t> nanoseconds_{0};
};

// `others`: whatever ends a recorded order, such as a hash or a commit.
struct RankWaits {
  WaitedFor gather, gradient, step, others;

  void add_stats(Stats& stats) const noexcept {
    stats.gather_wait_ranks_seconds = gather.seconds();
    stats.gradient_wait_ranks_seconds = gradient.seconds();
    stats.step_wait_ranks_seconds = step.seconds();
    stats.others_wait_ranks_seconds = others.seconds();
  }
};
}  // namespace headrace::ranks
