// SPDX-License-Identifier: Apache-2.0
#include "tune/contest.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "measure/rounds.hpp"

namespace headrace::tools {
namespace {
// Of an evaluation's time for a step; it counts a seventh of the bytes, but is a rate of its own.
constexpr double kReadPart = 1.0 / 3;

Amount common_amount(Goal goal, const Pace& pace, double seconds, double most_written_bytes) {
  const double reading = goal == Goal::kStep ? kReadPart : goal == Goal::kRead ? 1 : 0;
  const auto bytes = [](double rate, double time) {
    return static_cast<std::uint64_t>(rate * time);
  };
  Amount amount;
  amount.read_bytes = bytes(pace.read_rate, seconds * reading);
  amount.mixed_bytes = std::min(bytes(pace.mixed_rate / 2, seconds * (1 - reading)),
                                static_cast<std::uint64_t>(most_written_bytes));
  return amount;
}

template <class Of>
std::vector<double> each(const Contestant& contestant, const Of& of) {
  std::vector<double> values;
  for (const Evaluation& evaluation : contestant.rounds) values.push_back(of(evaluation));
  return values;
}
}  // namespace

std::uint64_t least_sample_bytes(const Candidate& candidate) {
  return std::max(2 * candidate.in_flight_bytes(),
                  base::align_up(8 * base::kMiB, candidate.block_bytes));
}

MedianInterval Contestant::rate(Goal goal) const {
  return interval_over_time(each(*this, [&](const Evaluation& e) { return e.rate(goal); }));
}
MedianInterval Contestant::cpu_per_gb() const {
  return median_interval(each(*this, [](const Evaluation& e) { return e.cpu_per_gb; }));
}

MedianInterval ratio(const Contestant& a, const Contestant& b, Goal goal) {
  const auto rates = [&](const Evaluation& e) { return e.rate(goal); };
  std::vector<double> ours = each(a, rates), theirs = each(b, rates);
  const std::size_t common = std::min(ours.size(), theirs.size());
  ours.resize(common);
  theirs.resize(common);
  return median_ratio(ours, theirs);
}

Contest::Contest(Gauge& gauge, Goal goal, const std::vector<Candidate>& candidates,
                 const Allowance& allowance, const Pace& pace, RoundProgress progress)
    : gauge_(gauge), goal_(goal), allowance_(allowance), progress_(std::move(progress)) {
  for (const Candidate& candidate : candidates) contestants_.push_back({.candidate = candidate});
  const double evaluations =
      static_cast<double>(candidates.size()) * (allowance_.aimed_rounds + 1.0);
  const double seconds = std::max(0.0, allowance_.until_seconds - gauge_.seconds());
  const std::uint64_t written = gauge_.written_bytes();
  const std::uint64_t writable =
      allowance_.until_written_bytes - std::min(allowance_.until_written_bytes, written);
  common_ = common_amount(
      goal_, pace, std::clamp(seconds / evaluations, kShortestEvaluation, kLongestEvaluation),
      static_cast<double>(writable) / evaluations);
}

Amount Contest::amount_of(const Candidate& candidate) const {
  const auto whole = [&](std::uint64_t bytes) {
    return base::align_up(std::max(bytes, least_sample_bytes(candidate)), candidate.block_bytes);
  };
  return {.read_bytes = goal_ == Goal::kMixed ? 0 : whole(common_.read_bytes),
          .mixed_bytes = goal_ == Goal::kRead ? 0 : whole(common_.mixed_bytes)};
}

bool Contest::allows(double seconds, std::uint64_t written_bytes) const {
  return gauge_.seconds() + seconds <= allowance_.until_seconds &&
         gauge_.written_bytes() + written_bytes <= allowance_.until_written_bytes;
}

void Contest::warm_up() {
  for (Contestant& contestant : contestants_) {
    const Amount amount = amount_of(contestant.candidate);
    if (&contestant != contestants_.data() && !allows(seconds_each_, amount.mixed_bytes)) {
      contestant.left_out = "no time or bytes were left to try it";
      continue;
    }
    progress_(0, contestant.candidate);
    const double began = gauge_.seconds();
    try {
      gauge_.take(contestant.candidate, amount, 0);
    } catch (const Error& error) {
      // Asked for by name it is an error, and so it is where nothing else would be left.
      const bool other_queue = contestant.candidate.queue != contestants_[0].candidate.queue;
      if (error.code() != Code::kUnsupported || !other_queue) throw;
      contestant.left_out = error.what();
    }
    seconds_each_ = std::max(seconds_each_, gauge_.seconds() - began);
  }
}

std::vector<std::size_t> Contest::present() const {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < contestants_.size(); ++i) {
    if (contestants_[i].left_out.empty()) indices.push_back(i);
  }
  return indices;
}

bool Contest::round(const std::vector<std::size_t>& indices) {
  std::uint64_t written = 0;
  for (const std::size_t i : indices) written += amount_of(contestants_[i].candidate).mixed_bytes;
  if (!allows(seconds_each_ * static_cast<double>(indices.size()), written)) return false;
  ++rounds_;
  const double began = gauge_.seconds();
  for (std::size_t n = 0; n < indices.size(); ++n) {
    Contestant& contestant = contestants_[indices[in_turn(n, indices.size(), rounds_)]];
    progress_(rounds_, contestant.candidate);
    contestant.rounds.push_back(
        gauge_.take(contestant.candidate, amount_of(contestant.candidate), rounds_));
  }
  seconds_each_ = (gauge_.seconds() - began) / static_cast<double>(indices.size());
  return true;
}

Elimination Contest::eliminate() {
  Elimination elimination(contestants_.size());
  for (std::size_t i = 0; i < contestants_.size(); ++i) {
    if (!contestants_[i].left_out.empty()) elimination.leave_out(i);
  }
  while (elimination.left().size() > 1 && rounds_ < allowance_.most_rounds) {
    if (!round(elimination.left())) break;
    std::vector<double> rates;
    for (const std::size_t i : elimination.left())
      rates.push_back(contestants_[i].rounds.back().rate(goal_));
    for (const std::size_t lost : elimination.add_round(rates))
      contestants_[lost].dropped_after = rounds_;
  }
  return elimination;
}
}  // namespace headrace::tools
