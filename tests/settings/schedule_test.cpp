// SPDX-License-Identifier: Apache-2.0
// schedule_test: learning rates and loss scales by step, against tables made with DeepSpeed
// 0.19.8's own schedulers and scaler.
#include "headrace/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "headrace/error.hpp"

namespace headrace {
namespace {
constexpr double kOwnRate = 0.2;  // the optimizer's

void expect_rates(const Scheduler& scheduler, const std::vector<double>& expected) {
  for (std::size_t n = 0; n < expected.size(); ++n)
    EXPECT_NEAR(scheduler.rates(n, kOwnRate).learning_rate, expected[n], 6e-8) << "after " << n;
}

TEST(Scheduler, WithoutATypeTheRateStays) {
  const StepRates rates = Scheduler{}.rates(7, kOwnRate);
  EXPECT_EQ(rates.learning_rate, kOwnRate);
  EXPECT_FALSE(rates.beta1);
}

TEST(Scheduler, WarmupLR) {
  Scheduler s{.type = SchedulerType::kWarmupLR};
  s.warmup_num_steps = 4;
  expect_rates(s, {0, 0, 0.1, 0.1584963, 0.2, 0.2, 0.2});
  s.warmup_min_lr = 0.1;
  s.warmup_max_lr = 0.5;
  s.warmup_type = WarmupType::kLinear;
  expect_rates(s, {0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5});
}

TEST(Scheduler, WarmupDecayLR) {
  Scheduler s{.type = SchedulerType::kWarmupDecayLR};
  s.warmup_num_steps = 4;
  s.total_num_steps = 10;
  s.warmup_type = WarmupType::kLinear;
  expect_rates(s, {0, 0, 0.00025, 0.0005, 0.00075, 0.001, 0.0008333333, 0.0006666667, 0.0005,
                   0.0003333333, 0.0001666667, 0, 0});
}

TEST(Scheduler, WarmupCosineLR) {
  Scheduler s{.type = SchedulerType::kWarmupCosineLR};
  s.warmup_num_steps = 2;
  s.total_num_steps = 6;
  s.warmup_min_ratio = s.cos_min_ratio = 0.1;
  s.warmup_type = WarmupType::kLinear;
  expect_rates(s, {0, 0.02, 0.11, 0.1736396, 0.11, 0.0463604, 0.02, 0.02, 0.02});
}

TEST(Scheduler, OneCycle) {
  Scheduler s{.type = SchedulerType::kOneCycle};
  s.cycle_min_lr = 0.1;
  s.cycle_max_lr = 0.5;
  s.cycle_first_step_size = 4;
  s.cycle_second_step_size = 2;
  s.decay_step_size = 2;
  s.decay_lr_rate = 1;
  s.decay_mom_rate = 0.5;
  expect_rates(s, {0.1, 0.2, 0.3, 0.4, 0.5, 0.3, 0.1, 0.0666667, 0.05, 0.04});
  const std::vector<double> betas{0.8, 0.875, 0.85, 0.825, 0.8, 0.85, 0.9, 1.125, 1.35};
  for (std::size_t n = 0; n < betas.size(); ++n) {
    EXPECT_NEAR(s.rates(n, kOwnRate).beta1.value(), betas[n], 1e-12) << "after " << n;
    EXPECT_EQ(s.rates(n, kOwnRate).beta2, 0.99);
  }
  s.cycle_momentum = false;
  EXPECT_FALSE(s.rates(1, kOwnRate).beta1);
  s.decay_step_size = 0;
  s.cycle_first_stair_count = 2;
  expect_rates(s, {0.1, 0.1, 0.3, 0.3, 0.5, 0.3, 0.1, 0.1});
}

TEST(Scheduler, LRRangeTest) {
  Scheduler s{.type = SchedulerType::kLRRangeTest};
  s.lr_range_test_step_size = 5;
  s.lr_range_test_step_rate = 2;
  expect_rates(s, {0.001, 0.0014, 0.0018, 0.0022, 0.0026, 0.003, 0.0034});
  s.lr_range_test_staircase = true;
  expect_rates(s, {0.001, 0.001, 0.001, 0.001, 0.001, 0.003, 0.003, 0.003, 0.003, 0.003, 0.005});
}

// How many steps have which scale, in order.
using Runs = std::vector<std::pair<int, double>>;

Runs scales_of_200_steps(bool consecutive) {
  const std::set<int> overflows{3,  4,  5,  20,  26,  40,  41,  55,  56,
                                57, 90, 95, 130, 150, 155, 160, 165, 199};
  LossScale scale({.loss_scale_window = 10, .consecutive_hysteresis = consecutive});
  Runs runs;
  for (int step = 0; step < 200; ++step) {
    if (runs.empty() || runs.back().second != scale.value()) runs.push_back({0, scale.value()});
    ++runs.back().first;
    scale.update(overflows.contains(step));
  }
  return runs;
}

TEST(LossScale, EqualsDeepSpeedsOver200StepsWithPlantedOverflows) {
  EXPECT_EQ(scales_of_200_steps(false),
            (Runs{{5, 65536},  {1, 32768},  {11, 16384}, {10, 32768},  {11, 16384},  {4, 32768},
                  {11, 16384}, {4, 32768},  {1, 16384},  {11, 8192},   {10, 16384},  {10, 32768},
                  {7, 65536},  {11, 32768}, {10, 65536}, {10, 131072}, {15, 262144}, {14, 524288},
                  {5, 262144}, {5, 131072}, {11, 65536}, {10, 131072}, {10, 262144}, {3, 524288}}));
}

TEST(LossScale, EqualsDeepSpeedsWhereEachGoodStepRestoresTheHysteresis) {
  EXPECT_EQ(scales_of_200_steps(true), (Runs{{5, 65536},
                                             {1, 32768},
                                             {11, 16384},
                                             {21, 32768},
                                             {4, 65536},
                                             {11, 32768},
                                             {4, 65536},
                                             {1, 32768},
                                             {11, 16384},
                                             {10, 32768},
                                             {10, 65536},
                                             {18, 131072},
                                             {10, 262144},
                                             {10, 524288},
                                             {15, 1048576},
                                             {35, 2097152},
                                             {10, 4194304},
                                             {10, 8388608},
                                             {3, 16777216}}));
}

TEST(LossScale, StaysWhereItIsStatic) {
  LossScale scale({.loss_scale = 128});
  for (int step = 0; step < 5; ++step) scale.update(step % 2 == 0);
  EXPECT_EQ(scale.value(), 128);
}

TEST(LossScale, EndsAtTheSmallest) {
  LossScale scale({.initial_scale_power = 2, .hysteresis = 1, .min_loss_scale = 1});
  scale.update(true);
  scale.update(true);
  EXPECT_EQ(scale.value(), 1);
  try {
    scale.update(true);
    FAIL() << "an overflow at the smallest scale went unnoticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFinite);
    EXPECT_NE(std::string(error.what()).find("fp16.min_loss_scale"), std::string::npos);
  }
}
}  // namespace
}  // namespace headrace
