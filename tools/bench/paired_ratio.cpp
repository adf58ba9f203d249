// SPDX-License-Identifier: Apache-2.0
#include "paired_ratio.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace headrace::tools {
namespace {
// How many of `n` sorted values have to lie at or below the bound: with k of them, the k-th is
// below the median only if k or more of n fair coins fall on one side.
std::size_t rank_of_bound(std::size_t n) {
  const double count = static_cast<double>(n);
  double at_most = 0;  // P(fewer than k of n)
  for (std::size_t k = 1; k <= n; ++k) {
    const double i = static_cast<double>(k - 1);
    const double ways = std::lgamma(count + 1) - std::lgamma(i + 1) - std::lgamma(count - i + 1);
    at_most += std::exp(ways - count * std::log(2.0));
    if (at_most >= 0.95) return k;
  }
  return n;
}
}  // namespace

PairedRatio paired_ratio(std::vector<double> ratios) {
  HEADRACE_CHECK(ratios.size() >= kLeastRatios, "fewer ratios bound nothing");
  std::ranges::sort(ratios);
  const std::size_t n = ratios.size();
  const auto above = std::ranges::count_if(ratios, [](double ratio) { return ratio > 1; });
  return {.median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2,
          .upper_bound = ratios[rank_of_bound(n) - 1],
          .least = ratios.front(),
          .most = ratios.back(),
          .share_above_one = static_cast<double>(above) / static_cast<double>(n)};
}
}  // namespace headrace::tools
