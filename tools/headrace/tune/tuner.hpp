// SPDX-License-Identifier: Apache-2.0
// tuner.hpp: two stages of elimination, then fresh rounds that alone say what the pick is worth.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tune/contest.hpp"

namespace headrace::tools {
struct TunerOptions {
  Goal goal = Goal::kStep;
  IoQueueKind queue = IoQueueKind::kAuto;  // another: that one or an error
  std::uint64_t file_bytes = 0;
  double until_seconds = 120;             // on the gauge's clock
  double other_seconds = 0;               // that --runtime is for besides, behind that
  std::uint64_t until_written_bytes = 0;  // on its counter, per drive
  bool quick = false;                     // fewer candidates
};

// One elimination, and what it led to.
struct Stage {
  std::string name;                     // "shape": block size and depth; "handover"
  std::vector<Contestant> contestants;  // the first is what was chosen before
  std::uint32_t rounds = 0;             // 0: none was possible, or one candidate alone
  std::size_t leader = 0, pick = 0;
  std::vector<std::size_t> equals;  // of the leader; the pick is the cheapest of them
};

// Fresh rounds: nothing of them was used to pick.
struct Confirmation {
  std::vector<Contestant> contestants;
  std::uint32_t rounds = 0;
  std::size_t defaults = 0, pick = 0;    // may be one and the same
  std::optional<std::size_t> runner_up;  // of the last stage that had another
};

enum class Verdict : std::uint8_t {
  kFaster,    // than the engine's defaults
  kDefaults,  // nothing was: the elimination itself led to them
  kNotTold,   // from the defaults, which are kept
  kSlower,    // in the fresh rounds the defaults were faster, and are kept
};

struct TuneResult {
  std::vector<Stage> stages;
  Confirmation confirmation;
  std::size_t chosen = 0;  // of the confirmation's contestants
  Verdict verdict = Verdict::kDefaults;
  bool few_shapes = false;       // time or bytes were too few for all, without --quick
  bool runner_up_taken = false;  // it was faster than the pick in the fresh rounds
  MedianInterval rate;           // of the chosen, bytes per second
  MedianInterval to_defaults;    // of the pick or, where taken, the runner-up; of fresh rounds
  bool resolved = false;         // the rate's interval is within kWantedHalfWidth

  const Candidate& settings() const { return confirmation.contestants[chosen].candidate; }
};

inline constexpr double kWantedHalfWidth = 0.10;
// A candidate within this share of the fastest counts as fast, unless the rounds separate them.
inline constexpr double kIndifference = 0.03;

// Told before each evaluation: "block size and depth", the round (0: to warm up), of whom.
using TuneProgress =
    std::function<void(const std::string& stage, std::uint32_t round, const Candidate& candidate)>;

// Throws what the gauge throws, and NothingMeasured where the time or the bytes were used up before
// the fresh rounds, which alone say anything.
TuneResult tune_on(Gauge& gauge, const TunerOptions& options, const TuneProgress& progress);

// The --runtime, in whole seconds, that leads to enough fresh rounds.
//   other_seconds    for writing the file and reading it back
//   seconds_each     an evaluation's; 0: not known
double runtime_for_fresh_rounds(double other_seconds, double seconds_each);
// The least that a run writes per drive beyond the file, so that the fresh rounds get theirs.
std::uint64_t least_written_bytes(Goal goal, const std::vector<Candidate>& shapes);
}  // namespace headrace::tools
