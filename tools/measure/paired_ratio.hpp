// SPDX-License-Identifier: Apache-2.0
// paired_ratio.hpp: an interval for the median ratio of paired measurements.
#pragma once
#include <cstddef>
#include <vector>

namespace headrace::tools {
// Fewer ratios bound nothing: even the largest of four is below the median once in sixteen times.
inline constexpr std::size_t kLeastRatios = 5;

struct PairedRatio {
  double median = 0;
  // One-sided, 95 %, by the sign test: the least of the given ratios that lies below the true
  // median with a probability of at most 0.05, whatever their distribution.
  double upper_bound = 0;
  double least = 0, most = 0;
  double share_above_one = 0;  // of the ratios
};
// At least kLeastRatios, independent of each other, in any order.
PairedRatio paired_ratio(std::vector<double> ratios);
}  // namespace headrace::tools
