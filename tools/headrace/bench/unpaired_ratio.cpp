// SPDX-License-Identifier: Apache-2.0
#include "bench/unpaired_ratio.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace headrace::tools {
namespace {
constexpr double kTail = 0.025;
constexpr std::size_t kExactPairs = 4096;  // above, the normal approximation is as good

// P(U = u) for u = 0 .. m * n, of m and n values from one distribution.
std::vector<double> rank_sum_distribution(std::size_t m, std::size_t n) {
  // rows[j][u] for i values against j; the largest of all is one of the i, or one of the j.
  std::vector<std::vector<double>> rows(n + 1, std::vector<double>(m * n + 1, 0.0));
  for (auto& row : rows) row[0] = 1;
  for (std::size_t i = 1; i <= m; ++i) {
    for (std::size_t j = 1; j <= n; ++j) {
      const double total = static_cast<double>(i + j);
      const double of_i = static_cast<double>(i) / total, of_j = static_cast<double>(j) / total;
      std::vector<double>& row = rows[j];  // of i - 1 until here
      for (std::size_t u = i * j + 1; u-- > 0;) {
        const double with_i = u >= j ? row[u - j] : 0;
        row[u] = of_i * with_i + of_j * rows[j - 1][u];
      }
    }
  }
  return rows[n];
}

// The largest k with P(U < k) <= 2.5 %; 0: there is none.
std::size_t rank_of_bound(std::size_t m, std::size_t n) {
  if (m * n > kExactPairs) {
    const double pairs = static_cast<double>(m * n);
    const double deviation = std::sqrt(pairs * static_cast<double>(m + n + 1) / 12);
    return static_cast<std::size_t>(std::floor(pairs / 2 - 1.96 * deviation));
  }
  const std::vector<double> chances = rank_sum_distribution(m, n);
  double below = 0;
  std::size_t k = 0;
  while (k < chances.size() && below + chances[k] <= kTail) below += chances[k++];
  return k;
}
}  // namespace

MedianInterval unpaired_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  HEADRACE_CHECK(!a.empty() && !b.empty(), "no value has no ratio");
  std::vector<double> ratios;
  for (const double of : b) {
    for (const double to : a) ratios.push_back(of / to);
  }
  std::ranges::sort(ratios);
  const std::size_t pairs = ratios.size(), rank = rank_of_bound(a.size(), b.size());
  const bool bounded = rank > 0;
  return {.median = (ratios[(pairs - 1) / 2] + ratios[pairs / 2]) / 2,
          .low = bounded ? ratios[rank - 1] : ratios.front(),
          .high = bounded ? ratios[pairs - rank] : ratios.back(),
          .least = ratios.front(),
          .most = ratios.back(),
          .bounded = bounded,
          .count = std::min(a.size(), b.size())};
}
}  // namespace headrace::tools
