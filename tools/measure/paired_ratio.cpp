// SPDX-License-Identifier: Apache-2.0
#include "measure/paired_ratio.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "measure/sign_test.hpp"

namespace headrace::tools {
PairedRatio paired_ratio(std::vector<double> ratios) {
  HEADRACE_CHECK(ratios.size() >= kLeastRatios, "fewer ratios bound nothing");
  std::ranges::sort(ratios);
  const std::size_t n = ratios.size();
  const auto above = std::ranges::count_if(ratios, [](double ratio) { return ratio > 1; });
  return {.median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2,
          .upper_bound = ratios[sign_test_rank(n, 0.95)],
          .least = ratios.front(),
          .most = ratios.back(),
          .share_above_one = static_cast<double>(above) / static_cast<double>(n)};
}
}  // namespace headrace::tools
