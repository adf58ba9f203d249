// SPDX-License-Identifier: Apache-2.0
#include "tune/elimination.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"
#include "measure/sign_test.hpp"

namespace headrace::tools {
namespace {
// Of a whole elimination: the chance that any candidate as good as the leader is dropped.
constexpr double kErrorShare = 0.05;
// Rounds are looked at again and again, and the leader is who was lucky so far: each look gets a
// part of the above. Simulated (tests/tools/tune_elimination_test.cpp).
constexpr double kLooks = 8;
// A candidate that loses each of a few rounds by this much needs no more of them.
constexpr std::uint32_t kFarBehindRounds = 5;
constexpr double kFarBehind = 0.7;
constexpr double kCpuTold = 1.1;
}  // namespace

Elimination::Elimination(std::size_t candidates)
    : rates_(candidates), dropped_(candidates), left_(candidates) {
  std::iota(left_.begin(), left_.end(), std::size_t{0});
}

void Elimination::leave_out(std::size_t candidate) {
  HEADRACE_CHECK(rounds_ == 0, "who has taken part is dropped, not left out");
  std::erase(left_, candidate);
}

std::vector<std::size_t> Elimination::add_round(const std::vector<double>& rates) {
  HEADRACE_CHECK(rates.size() == left_.size(), "a rate for each that is left");
  for (std::size_t i = 0; i < rates.size(); ++i) rates_[left_[i]].push_back(rates[i]);
  ++rounds_;
  const std::size_t best = leader();
  std::vector<std::size_t> lost;
  for (const std::size_t candidate : left_) {
    if (candidate == best || !has_lost(candidate, best)) continue;
    lost.push_back(candidate);
    dropped_[candidate] = rounds_;
  }
  std::erase_if(left_, [&](std::size_t candidate) { return dropped_[candidate].has_value(); });
  return lost;
}

// The interval of the ratio to the leader, pair by pair, lies wholly below 1 (the sign test, which
// asks nothing of how the noise is distributed), at a level that holds for all comparisons.
bool Elimination::has_lost(std::size_t candidate, std::size_t to) const {
  std::size_t behind = 0, far_behind = 0;
  for (std::size_t i = 0; i < rounds_; ++i) {
    const double ratio = rates_[candidate][i] / rates_[to][i];
    behind += ratio < 1 ? 1 : 0;
    far_behind += ratio < kFarBehind ? 1 : 0;
  }
  if (rounds_ >= kFarBehindRounds && far_behind == rounds_) return true;
  const double others = static_cast<double>(std::max<std::size_t>(rates_.size(), 2) - 1);
  return rounds_ - behind < sign_test_rank(rounds_, kErrorShare / others / kLooks);
}

std::size_t Elimination::leader() const {
  HEADRACE_CHECK(rounds_ > 0 && !left_.empty(), "without a round nobody leads");
  return *std::ranges::max_element(
      left_, {}, [this](std::size_t candidate) { return rate(candidate).median; });
}

MedianInterval Elimination::rate(std::size_t candidate) const {
  return median_interval(rates_[candidate]);
}

MedianInterval Elimination::ratio_to(std::size_t candidate, std::size_t other) const {
  std::vector<double> ours = rates_[candidate], theirs = rates_[other];
  const std::size_t common = std::min(ours.size(), theirs.size());
  ours.resize(common);
  theirs.resize(common);
  return median_ratio(ours, theirs);
}

std::optional<std::uint32_t> Elimination::dropped_after(std::size_t candidate) const {
  return dropped_[candidate];
}

std::vector<std::size_t> Elimination::equals_of_leader(double margin) const {
  const std::size_t best = leader();
  std::vector<std::size_t> equals;
  for (const std::size_t candidate : left_) {
    const MedianInterval ratio = ratio_to(candidate, best);
    const bool told_apart = ratio.bounded && ratio.high < 1;
    if (candidate == best || (!told_apart && ratio.median >= 1 - margin))
      equals.push_back(candidate);
  }
  return equals;
}

MedianInterval interval_over_time(const std::vector<double>& values) {
  MedianInterval hull = median_interval(values);
  for (std::size_t size = 2;; size *= 2) {
    std::vector<double> means;
    for (std::size_t end = size; end <= values.size(); end += size) {
      const auto last = values.begin() + static_cast<std::ptrdiff_t>(end);
      const double sum = std::accumulate(last - static_cast<std::ptrdiff_t>(size), last, 0.0);
      means.push_back(sum / static_cast<double>(size));
    }
    if (means.empty()) return hull;
    const MedianInterval of_means = median_interval(std::move(means));
    if (!of_means.bounded) return hull;
    hull.low = std::min(hull.low, of_means.low);
    hull.high = std::max(hull.high, of_means.high);
  }
}

std::size_t cheapest(const std::vector<Cost>& costs) {
  HEADRACE_CHECK(!costs.empty(), "one of none");
  const std::uint64_t least_bytes =
      std::ranges::min(costs, {}, &Cost::in_flight_bytes).in_flight_bytes;
  double least_cpu = INFINITY;
  for (const Cost& cost : costs) {
    if (cost.in_flight_bytes == least_bytes) least_cpu = std::min(least_cpu, cost.cpu_per_gb);
  }
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const bool equal =
        costs[i].in_flight_bytes == least_bytes && costs[i].cpu_per_gb <= least_cpu * kCpuTold;
    if (equal && (!best || costs[i].preference < costs[*best].preference)) best = i;
  }
  return *best;
}
}  // namespace headrace::tools
