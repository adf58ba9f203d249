// SPDX-License-Identifier: Apache-2.0
#include "tune/tuner.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "bench/nothing_measured.hpp"

namespace headrace::tools {
namespace {
// Shares of time and bytes; what a stage leaves goes to those after it.
constexpr double kShapeShare = 0.45, kHandoverShare = 0.25, kConfirmShare = 0.30;
constexpr double kTellingRounds = 10;  // below it nobody is dropped but who is far behind
constexpr std::uint32_t kAimedRounds = 14, kMostRounds = 20;
constexpr std::uint32_t kLeastFreshRounds = 24, kAimedFreshRounds = 30, kMostFreshRounds = 60;
constexpr double kMostConfirmed = 3;  // the defaults, the pick and the second
// Fewer would bound nothing (measure/statistics.hpp).
constexpr std::uint64_t kLeastEvaluations = 24;

class Tuner {
 public:
  Tuner(Gauge& gauge, const TunerOptions& options, const TuneProgress& progress)
      : gauge_(gauge), options_(options), progress_(progress) {}

  TuneResult run() {
    began_ = gauge_.seconds();
    check_time("before anything was measured");
    find_pace();
    check_time("once the drive's pace was known");
    const Stage& shape = eliminate("block size and depth", shapes(), kShapeShare);
    const Candidate before = shape.contestants[shape.pick].candidate;
    const std::string queue = shape.contestants[shape.pick].rounds.empty()
                                  ? queue_
                                  : shape.contestants[shape.pick].queue();
    eliminate("batch, queue and registration", handover_candidates(before, queue),
              kHandoverShare / (kHandoverShare + kConfirmShare));
    confirm();
    if (result_.confirmation.rounds == 0) {
      check_time("before the fresh rounds");
      throw NothingMeasured(
          "no fresh round fits in the bytes that --max-write allows; nothing was chosen, and the "
          "files are gone. Raise --max-write, or give --quick or a smaller --size");
    }
    conclude();
    return std::move(result_);
  }

 private:
  // Throws where none is left.
  void check_time(const char* when) const {
    if (gauge_.seconds() < options_.until_seconds) return;
    throw NothingMeasured(fmt::format(
        "the --runtime of {:.0f} s was over {}: the file took {:.0f} s to write and takes as long "
        "to read back; nothing was chosen, and the files are gone. Give --runtime {:.0f}s, or a "
        "smaller --size",
        options_.until_seconds + options_.other_seconds, when, options_.other_seconds,
        runtime_for_fresh_rounds(began_ + options_.other_seconds, first_seconds_)));
  }

  // All of them, or a few where there would be too few rounds to tell any apart.
  std::vector<Candidate> shapes() {
    const auto of = [this](bool few) {
      return shape_candidates(options_.queue, options_.file_bytes, few);
    };
    if (options_.quick) return of(true);
    std::vector<Candidate> all = of(false);
    const Allowance allowed = allowance(kShapeShare);
    const double evaluations = kTellingRounds * static_cast<double>(all.size());
    const double seconds = evaluations * std::max(kShortestEvaluation, first_seconds_);
    const double written = evaluations * static_cast<double>(first_written_bytes_);
    result_.few_shapes = gauge_.seconds() + seconds > allowed.until_seconds ||
                         static_cast<double>(gauge_.written_bytes()) + written >
                             static_cast<double>(allowed.until_written_bytes);
    return result_.few_shapes ? of(true) : all;
  }

  // How fast the defaults are, roughly: samples of all are as long as that makes them.
  void find_pace() {
    const Candidate defaults = default_candidate(options_.queue);
    const std::uint64_t least = least_sample_bytes(defaults);
    const Amount amount{.read_bytes = options_.goal == Goal::kMixed ? 0 : least,
                        .mixed_bytes = options_.goal == Goal::kRead ? 0 : least};
    progress_("how fast the drive is", 0, defaults);
    const double began = gauge_.seconds();
    const Evaluation first = gauge_.take(defaults, amount, 0);
    first_seconds_ = gauge_.seconds() - began;
    first_written_bytes_ = amount.mixed_bytes;
    queue_ = first.queue;
    pace_ = {first.read_rate, first.mixed_rate};
  }

  // That share of what is left.
  Allowance allowance(double share) const {
    const double now = gauge_.seconds();
    const std::uint64_t written = gauge_.written_bytes();
    const std::uint64_t left =
        options_.until_written_bytes - std::min(options_.until_written_bytes, written);
    return {.until_seconds = now + share * std::max(0.0, options_.until_seconds - now),
            .until_written_bytes =
                written + static_cast<std::uint64_t>(share * static_cast<double>(left)),
            .aimed_rounds = kAimedRounds,
            .most_rounds = kMostRounds};
  }

  Contest contest(const std::string& name, const std::vector<Candidate>& candidates,
                  const Allowance& allowed) {
    return {gauge_,
            options_.goal,
            candidates,
            allowed,
            pace_,
            [this, name](std::uint32_t round, const Candidate& candidate) {
              progress_(name, round, candidate);
            }};
  }

  const Stage& eliminate(const std::string& name, const std::vector<Candidate>& candidates,
                         double share) {
    Stage& stage = result_.stages.emplace_back();
    stage.name = name;
    if (candidates.size() == 1) {
      stage.contestants.push_back({.candidate = candidates[0]});
      return stage;
    }
    Contest rounds = contest(name, candidates, allowance(share));
    rounds.warm_up();
    const Elimination elimination = rounds.eliminate();
    stage.contestants = rounds.contestants();
    stage.rounds = rounds.rounds();
    if (stage.rounds == 0) return stage;  // the first: what was chosen before
    stage.leader = elimination.leader();
    stage.equals = elimination.equals_of_leader(kIndifference);
    std::vector<Cost> costs;
    for (const std::size_t i : stage.equals) {
      const Contestant& equal = stage.contestants[i];
      costs.push_back({equal.candidate.in_flight_bytes(), equal.cpu_per_gb().median, i});
    }
    stage.pick = stage.equals[cheapest(costs)];
    return stage;
  }

  // The fastest other that is known: of the last stage, else of the one before.
  std::optional<Candidate> runner_up(const Candidate& pick, const Candidate& defaults) const {
    for (std::size_t s = result_.stages.size(); s-- > 0;) {
      const Contestant* best = nullptr;
      for (const Contestant& other : result_.stages[s].contestants) {
        const bool counts = !other.rounds.empty() && !other.dropped_after &&
                            other.candidate != pick && other.candidate != defaults;
        if (!counts) continue;
        if (best == nullptr || other.rate(options_.goal).median > best->rate(options_.goal).median)
          best = &other;
      }
      if (best != nullptr) return best->candidate;
    }
    return std::nullopt;
  }

  void confirm() {
    const Stage& last = result_.stages.back();
    const Candidate pick = last.contestants[last.pick].candidate;
    const Candidate defaults = default_candidate(options_.queue);
    std::vector<Candidate> candidates{defaults};
    Confirmation& fresh = result_.confirmation;
    if (pick != defaults) {
      fresh.pick = candidates.size();
      candidates.push_back(pick);
    }
    if (const std::optional<Candidate> other = runner_up(pick, defaults)) {
      fresh.runner_up = candidates.size();
      candidates.push_back(*other);
    }
    Allowance allowed = allowance(1);
    allowed.aimed_rounds = kAimedFreshRounds;
    Contest rounds = contest("fresh rounds", candidates, allowed);
    const std::vector<std::size_t> all = rounds.present();
    while (rounds.rounds() < kMostFreshRounds && rounds.round(all)) {
      fresh.contestants = rounds.contestants();
      if (rounds.rounds() >= kLeastFreshRounds && is_narrow()) break;
    }
    fresh.contestants = rounds.contestants();
    fresh.rounds = rounds.rounds();
  }

  bool is_narrow() const {
    const Confirmation& fresh = result_.confirmation;
    const auto narrow = [](const MedianInterval& interval) {
      return interval.bounded && interval.half_width() <= kWantedHalfWidth;
    };
    return std::ranges::all_of(fresh.contestants, [&](const Contestant& contestant) {
      return narrow(contestant.rate(options_.goal)) &&
             narrow(ratio(contestant, fresh.contestants[fresh.defaults], options_.goal));
    });
  }

  // After at least one fresh round.
  void conclude() {
    const Confirmation& fresh = result_.confirmation;
    const auto& those = fresh.contestants;
    std::size_t best = fresh.pick;
    if (fresh.runner_up) {
      const MedianInterval to_pick = ratio(those[*fresh.runner_up], those[best], options_.goal);
      result_.runner_up_taken = to_pick.bounded && to_pick.low > 1;
      if (result_.runner_up_taken) best = *fresh.runner_up;
    }
    result_.to_defaults = ratio(those[best], those[fresh.defaults], options_.goal);
    result_.verdict = verdict(best == fresh.defaults);
    result_.chosen = result_.verdict == Verdict::kFaster ? best : fresh.defaults;
    result_.rate = those[result_.chosen].rate(options_.goal);
    result_.resolved = result_.rate.bounded && result_.rate.half_width() <= kWantedHalfWidth;
  }

  Verdict verdict(bool is_defaults) const {
    if (is_defaults) return Verdict::kDefaults;
    const MedianInterval& to_defaults = result_.to_defaults;
    if (to_defaults.bounded && to_defaults.low > 1) return Verdict::kFaster;
    return to_defaults.bounded && to_defaults.high < 1 ? Verdict::kSlower : Verdict::kNotTold;
  }

  Gauge& gauge_;
  const TunerOptions& options_;
  const TuneProgress& progress_;
  std::string queue_;
  Pace pace_;
  double began_ = 0;
  double first_seconds_ = 0;
  std::uint64_t first_written_bytes_ = 0;
  TuneResult result_;
};
}  // namespace

TuneResult tune_on(Gauge& gauge, const TunerOptions& options, const TuneProgress& progress) {
  return Tuner(gauge, options, progress).run();
}

double runtime_for_fresh_rounds(double other_seconds, double seconds_each) {
  const double each = std::max(seconds_each, kShortestEvaluation);
  const double fresh = kMostConfirmed * kLeastFreshRounds * each;
  return std::ceil(1.2 * other_seconds + fresh / kConfirmShare);
}

std::uint64_t least_written_bytes(Goal goal, const std::vector<Candidate>& shapes) {
  if (goal == Goal::kRead) return 0;
  std::uint64_t largest = 0;
  for (const Candidate& shape : shapes) largest = std::max(largest, least_sample_bytes(shape));
  return kLeastEvaluations * largest;
}
}  // namespace headrace::tools
