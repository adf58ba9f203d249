// SPDX-License-Identifier: Apache-2.0
// contest.hpp: rounds of several candidates, interleaved, until one is left or the budget is used.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "measure/statistics.hpp"
#include "tune/elimination.hpp"
#include "tune/gauge.hpp"

namespace headrace::tools {
// Seconds of an evaluation, where bytes allow it.
inline constexpr double kShortestEvaluation = 0.06, kLongestEvaluation = 2;

// Marks on the gauge's clock and counter that rounds do not pass; and how much they may take.
struct Allowance {
  double until_seconds = 0;
  std::uint64_t until_written_bytes = 0;
  std::uint32_t aimed_rounds = 0;  // samples are so long that as many are possible
  std::uint32_t most_rounds = 0;
};

// Bytes per second; from earlier samples.
struct Pace {
  double read_rate = 0, mixed_rate = 0;
};

struct Contestant {
  Candidate candidate;
  std::vector<Evaluation> rounds = {};  // in order; fewer where it was dropped
  std::optional<std::uint32_t> dropped_after = {};
  std::string left_out = {};  // why it took no part: its queue does not work, or no time was left

  // At least one round, as below.
  MedianInterval rate(Goal goal) const;  // over time: interval_over_time()
  MedianInterval cpu_per_gb() const;
  const std::string& queue() const { return rounds.back().queue; }
};
// Of a/b, round by round, as far as both went.
MedianInterval ratio(const Contestant& a, const Contestant& b, Goal goal);

// Told before each evaluation: the round (0: to warm up) and of whom.
using RoundProgress = std::function<void(std::uint32_t round, const Candidate& candidate)>;

class Contest {
 public:
  Contest(Gauge& gauge, Goal goal, const std::vector<Candidate>& candidates,
          const Allowance& allowance, const Pace& pace, RoundProgress progress);

  // Measures each once, which counts for nothing: first of all queues are tried.
  void warm_up();
  // A round of all `indices`; false, and nothing measured, where the allowance has none left.
  bool round(const std::vector<std::size_t>& indices);
  // Rounds until one is left, the allowance is used up, or there were most_rounds of them.
  // Afterwards: who is left, none only if no round was possible.
  Elimination eliminate();

  const std::vector<Contestant>& contestants() const noexcept { return contestants_; }
  std::uint32_t rounds() const noexcept { return rounds_; }
  // Of those that were warmed up.
  std::vector<std::size_t> present() const;

 private:
  Amount amount_of(const Candidate& candidate) const;
  bool allows(double seconds, std::uint64_t written_bytes) const;

  Gauge& gauge_;
  Goal goal_;
  std::vector<Contestant> contestants_;
  Allowance allowance_;
  RoundProgress progress_;
  Amount common_;
  std::uint32_t rounds_ = 0;
  double seconds_each_ = 0;  // an evaluation, the longest of the last round
};

// Fewer bytes say nothing of this candidate: the queue must fill and drain.
std::uint64_t least_sample_bytes(const Candidate& candidate);
}  // namespace headrace::tools
