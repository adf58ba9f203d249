// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "measure/sign_test.hpp"

namespace headrace::tools {
MedianInterval median_interval(std::vector<double> values) {
  HEADRACE_CHECK(!values.empty(), "no value has no median");
  std::ranges::sort(values);
  const std::size_t n = values.size(), rank = sign_test_rank(n, 0.025);
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
