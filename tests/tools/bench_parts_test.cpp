// SPDX-License-Identifier: Apache-2.0
// bench_parts_test: latencies, medians with intervals, and which cell is recommended.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "bench/latency.hpp"
#include "bench/measurement.hpp"
#include "measure/statistics.hpp"

namespace headrace::tools::bench_parts_test {
namespace {
TEST(LatencyHistogram, QuantilesAreWithinABucketOfThoseOfTheSortedValues) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> values;
  LatencyHistogram histogram;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(random() >> (random() % 60 + 4));
    histogram.add(values.back());
  }
  std::ranges::sort(values);
  for (const double share : {0.001, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto index = static_cast<std::size_t>(std::ceil(share * 20'000.0)) - 1;
    const double exact = static_cast<double>(values[index]);
    const double got = static_cast<double>(histogram.quantile_ns(share));
    EXPECT_GE(got, exact) << share;
    EXPECT_LE(got, exact * (1 + 1.0 / 32) + 1) << share;
  }
  EXPECT_EQ(histogram.max_ns(), values.back());
  EXPECT_EQ(histogram.min_ns(), values.front());
  EXPECT_EQ(histogram.count(), values.size());
}

TEST(LatencyHistogram, TheSumOfTwoIsThatOfAllValues) {
  LatencyHistogram low, high, all;
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    (i <= 500 ? low : high).add(i * 1000);
    all.add(i * 1000);
  }
  low.add(high);
  for (const double share : {0.1, 0.5, 0.99})
    EXPECT_EQ(low.quantile_ns(share), all.quantile_ns(share));
  EXPECT_DOUBLE_EQ(low.mean_ns(), 500'500);
  EXPECT_EQ(low.max_ns(), 1'000'000u);
}

TEST(LatencyHistogram, TheLargestValueHasABucket) {
  LatencyHistogram histogram;
  histogram.add(~std::uint64_t{0});
  EXPECT_EQ(histogram.quantile_ns(1), ~std::uint64_t{0});
  EXPECT_EQ(LatencyHistogram{}.quantile_ns(0.5), 0u);
}

TEST(MedianInterval, BoundsNothingBelowSixValues) {
  EXPECT_FALSE(median_interval({1, 2, 3, 4, 5}).bounded);
  const MedianInterval six = median_interval({6, 1, 5, 2, 4, 3});
  EXPECT_TRUE(six.bounded);  // 1 - 2 / 2^6 = 0.97
  EXPECT_EQ(six.low, 1);
  EXPECT_EQ(six.high, 6);
  EXPECT_DOUBLE_EQ(six.median, 3.5);
}

TEST(MedianInterval, HasTheRanksOfTheSignTest) {
  std::vector<double> values;
  for (int i = 1; i <= 20; ++i) values.push_back(i);
  const MedianInterval twenty = median_interval(values);
  EXPECT_EQ(twenty.low, 6);  // P(at most 5 of 20) = 0.0207
  EXPECT_EQ(twenty.high, 15);
  while (values.size() < 40) values.push_back(static_cast<double>(values.size()) + 1);
  EXPECT_EQ(median_interval(values).low, 14);
  EXPECT_EQ(median_interval(values).high, 27);
}

// A seed is drawn anew each time: 2,000 intervals hold less than 93 % once in 10^4 runs.
TEST(MedianInterval, HoldsTheTrueMedianAtLeast95TimesIn100) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> skewed(0, 1);  // median 1
  int held = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<double> values(9);
    for (double& value : values) value = skewed(random);
    const MedianInterval interval = median_interval(values);
    if (interval.low <= 1 && 1 <= interval.high) ++held;
  }
  EXPECT_GE(held, 1860);
}

Cell cell(Pattern pattern, std::uint32_t depth, std::vector<double> rates) {
  Cell cell;
  cell.workload = {.pattern = pattern, .depth = depth};
  for (const double rate : rates)
    cell.samples.push_back({.seconds = 1, .read_bytes = static_cast<std::uint64_t>(rate)});
  return cell;
}

TEST(Recommended, OfThoseThatCannotBeToldFromTheBestIsTheOneWithTheLeastInFlight) {
  Measurement measurement;
  measurement.cells = {cell(Pattern::kRead, 1, {50, 51, 52, 53, 54, 55}),
                       cell(Pattern::kRead, 8, {97, 98, 99, 100, 101, 102}),
                       cell(Pattern::kRead, 32, {98, 99, 100, 101, 102, 103}),
                       cell(Pattern::kWrite, 1, {98, 99, 100, 101, 102, 103})};
  EXPECT_EQ(recommended(measurement, Pattern::kRead), 1u);
  EXPECT_EQ(recommended(measurement, Pattern::kWrite), 3u);
  EXPECT_EQ(recommended(measurement, Pattern::kMixed), std::nullopt);
  EXPECT_DOUBLE_EQ(ceiling_of(measurement).read, 100.5);
}

TEST(Workload, IsNamedByWhatDiffersFromTheDefaults) {
  EXPECT_EQ(text_of({}), "read 1M x 16");
  EXPECT_EQ(text_of({.pattern = Pattern::kMixed,
                     .block_bytes = 256 << 10,
                     .depth = 4,
                     .jobs = 2,
                     .register_buffers = false,
                     .queue = IoQueueKind::kAio}),
            "rw 256k x 4, aio, 2 jobs, unregistered");
  for (const Pattern pattern :
       {Pattern::kRead, Pattern::kWrite, Pattern::kRandRead, Pattern::kRandWrite, Pattern::kMixed})
    EXPECT_EQ(pattern_of(name_of(pattern)), pattern);
  EXPECT_EQ(pattern_of("trim"), std::nullopt);
}
}  // namespace
}  // namespace headrace::tools::bench_parts_test
