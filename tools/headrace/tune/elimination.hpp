// SPDX-License-Identifier: Apache-2.0
// elimination.hpp: finds the fastest of several candidates from rates measured in rounds of all
// that are left; pure, whatever the rates are of.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "measure/statistics.hpp"

namespace headrace::tools {
// Candidates are numbers from 0. A round is one rate of each that is left, taken under the same
// conditions; so candidates are compared round by round, and drift of the drive cancels.
class Elimination {
 public:
  explicit Elimination(std::size_t candidates);

  // One that takes no part. Not after the first round.
  void leave_out(std::size_t candidate);
  // A round: a rate for each of left(), in its order; more than 0. Then drops who has clearly lost
  // and returns them.
  std::vector<std::size_t> add_round(const std::vector<double>& rates);

  const std::vector<std::size_t>& left() const noexcept { return left_; }
  std::uint32_t rounds() const noexcept { return rounds_; }
  // Of the median over all rounds, among those left; after at least one round.
  std::size_t leader() const;
  // Over the rounds it took part in; after at least one.
  MedianInterval rate(std::size_t candidate) const;
  MedianInterval ratio_to(std::size_t candidate, std::size_t other) const;
  // The round after which it was dropped.
  std::optional<std::uint32_t> dropped_after(std::size_t candidate) const;

  // Of those left, who is as good as the leader for all that can be told: not told apart, and
  // measured within `margin` of it (a share). The leader is one of them.
  std::vector<std::size_t> equals_of_leader(double margin) const;

 private:
  bool has_lost(std::size_t candidate, std::size_t to) const;

  std::vector<std::vector<double>> rates_;  // per candidate, a round each
  std::vector<std::optional<std::uint32_t>> dropped_;
  std::vector<std::size_t> left_;
  std::uint32_t rounds_ = 0;
};

// As median_interval(), of values in the order in which they were taken, for a drive that is faster
// for a while and slower for a while: the hull of the intervals of single values and of the means
// of 2, 4, ... neighbours, as long as there are enough of them to bound anything.
MedianInterval interval_over_time(const std::vector<double>& values);

// The cost that decides among equals.
struct Cost {
  std::uint64_t in_flight_bytes = 0;
  double cpu_per_gb = 0;
  std::size_t preference = 0;  // the least is preferred where nothing else tells
};
// The index of the cheapest: fewest bytes in flight; then the least CPU, if by more than a tenth;
// then preference. At least one.
std::size_t cheapest(const std::vector<Cost>& costs);
}  // namespace headrace::tools
