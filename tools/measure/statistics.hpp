// SPDX-License-Identifier: Apache-2.0
// statistics.hpp: intervals for the median of repeated measurements, whatever their distribution.
#pragma once
#include <cstddef>
#include <vector>

namespace headrace::tools {
struct MedianInterval {
  double median = 0;
  double low = 0, high = 0;  // holds the true median with at least 95 %; see `bounded`
  double least = 0, most = 0;
  // Fewer than six values bound nothing at 95 %: low and high are then the least and the most.
  bool bounded = false;
  std::size_t count = 0;

  // Half the interval's width as a share of the median.
  double half_width() const { return median == 0 ? 0 : (high - low) / 2 / median; }
};
// By order statistics (the two-sided sign test). At least one value, independent, in any order.
MedianInterval median_interval(std::vector<double> values);
// Of a/b, pair by pair. As many of both; no b is 0.
MedianInterval median_ratio(const std::vector<double>& a, const std::vector<double>& b);
}  // namespace headrace::tools
