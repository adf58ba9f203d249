// SPDX-License-Identifier: Apache-2.0
// The bound that adapter_bench prints: its rank against the sign test's table, and how often it is
// below the truth.
#include "measure/paired_ratio.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace headrace::tools {
namespace {
std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.rbegin(), values.rend(), 1.0);
  return values;
}

TEST(PairedRatio, BoundsTheMedianByTheSignTestsRanks) {
  // P(fewer than k heads of n) is first 0.95 or more at this k.
  const std::vector<std::pair<int, double>> table = {{5, 5},   {8, 7},   {10, 9},
                                                     {20, 15}, {30, 20}, {40, 26}};
  for (const auto& [n, rank] : table) EXPECT_EQ(paired_ratio(one_to(n)).upper_bound, rank) << n;
}

TEST(PairedRatio, TellsMedianEndsAndShareWhateverTheOrder) {
  const PairedRatio odd = paired_ratio({1.2, 0.9, 1.0, 1.1, 0.8});
  EXPECT_EQ(odd.median, 1.0);
  EXPECT_EQ(odd.least, 0.8);
  EXPECT_EQ(odd.most, 1.2);
  EXPECT_DOUBLE_EQ(odd.share_above_one, 0.4);
  EXPECT_DOUBLE_EQ(paired_ratio({6, 1, 5, 2, 4, 3}).median, 3.5);
}

TEST(PairedRatio, BoundIsBelowTheTrueMedianInAtMostFivePerCent) {
  std::mt19937_64 random(20);
  std::lognormal_distribution<double> ratio(0, 0.3);  // of median 1, and lopsided
  int below = 0;
  constexpr int kTrials = 20'000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> ratios(30);
    for (double& r : ratios) r = ratio(random);
    below += paired_ratio(ratios).upper_bound < 1 ? 1 : 0;
  }
  EXPECT_LE(below, kTrials * 52 / 1000);  // 0.0494 are expected, 0.0015 is one deviation
  EXPECT_GE(below, kTrials * 46 / 1000);
}
}  // namespace
}  // namespace headrace::tools
