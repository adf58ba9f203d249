// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace headrace::tools {
namespace {
// The largest k for which the k-th smallest and the k-th largest of `n` values enclose the median
// with at least 95 %: P(fewer than k of n fair coins fall on one side) <= 0.025. 0: there is none.
std::size_t rank_of_bound(std::size_t n) {
  const double count = static_cast<double>(n);
  double below = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const double i = static_cast<double>(k);
    const double ways = std::lgamma(count + 1) - std::lgamma(i + 1) - std::lgamma(count - i + 1);
    below += std::exp(ways - count * std::log(2.0));
    if (below > 0.025) return k;
  }
  return n;
}
}  // namespace

MedianInterval median_interval(std::vector<double> values) {
  HEADRACE_CHECK(!values.empty(), "no value has no median");
  std::ranges::sort(values);
  const std::size_t n = values.size(), rank = rank_of_bound(n);
  const bool bounded = rank > 0;
  return {.median = (values[(n - 1) / 2] + values[n / 2]) / 2,
          .low = bounded ? values[rank - 1] : values.front(),
          .high = bounded ? values[n - rank] : values.back(),
          .least = values.front(),
          .most = values.back(),
          .bounded = bounded,
          .count = n};
}

MedianInterval median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  HEADRACE_CHECK(a.size() == b.size(), "each value has its partner");
  std::vector<double> ratios(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) ratios[i] = a[i] / b[i];
  return median_interval(std::move(ratios));
}
}  // namespace headrace::tools
