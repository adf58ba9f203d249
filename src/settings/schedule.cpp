// SPDX-License-Identifier: Apache-2.0
#include "headrace/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace {
namespace {
double real(std::uint64_t count) { return static_cast<double>(count); }

// DeepSpeed counts the updates before the last one: its first two rates of a warm-up are alike.
double warmed_up(const Scheduler& s, std::uint64_t warmup, std::uint64_t updates) {
  if (updates == 0) return 0;
  if (s.warmup_type == WarmupType::kLinear) return real(updates - 1) / real(warmup);
  return std::log(real(updates)) / std::log(real(warmup));
}

std::uint64_t warmup_steps(const Scheduler& s) {
  return std::max<std::uint64_t>(2, s.warmup_num_steps);
}

double warmup_rate(const Scheduler& s, std::uint64_t updates, double learning_rate) {
  const std::uint64_t warmup = warmup_steps(s);
  const bool decays = s.type == SchedulerType::kWarmupDecayLR;
  const double most = s.warmup_max_lr.value_or(decays ? 0.001 : learning_rate);
  double share = 1;
  if (updates <= warmup) {
    share = warmed_up(s, warmup, updates);
  } else if (decays) {
    const double falling = std::max(1.0, real(s.total_num_steps) - real(warmup));
    share = std::max(0.0, (real(s.total_num_steps) - real(updates - 1)) / falling);
  }
  return s.warmup_min_lr + (most - s.warmup_min_lr) * share;
}

double cosine_rate(const Scheduler& s, std::uint64_t updates, double learning_rate) {
  if (updates == 0) return 0;
  const std::uint64_t warmup = warmup_steps(s);
  if (updates <= warmup) {
    const double least = s.warmup_min_ratio;
    return learning_rate * (least + (1 - least) * warmed_up(s, warmup, updates));
  }
  const double falling = std::max(1.0, real(s.total_num_steps) - real(warmup));
  const double done = std::min(1.0, real(updates - warmup) / falling);
  const double height = (1 + std::cos(std::numbers::pi * done)) / 2;
  return learning_rate * std::max(0.0, s.cos_min_ratio + (1 - s.cos_min_ratio) * height);
}

// 0 at the ends of the cycle, 1 at its middle.
double cycle_height(const Scheduler& s, std::uint64_t updates) {
  const std::uint64_t first = s.cycle_first_step_size;
  const std::uint64_t second = s.cycle_second_step_size.value_or(first);
  const std::uint64_t at = updates % (first + second);
  const bool rising = at <= first;
  const std::uint64_t steps = rising ? at : first + second - at, of = rising ? first : second;
  const std::uint64_t stairs = rising
                                   ? s.cycle_first_stair_count
                                   : s.cycle_second_stair_count.value_or(s.cycle_first_stair_count);
  if (stairs == 0) return real(steps) / real(of);
  return std::floor(real(steps * stairs) / real(of)) / real(stairs);
}

StepRates one_cycle(const Scheduler& s, std::uint64_t updates) {
  constexpr double kBeta2 = 0.99;
  StepRates rates;
  const std::uint64_t cycle =
      s.cycle_first_step_size + s.cycle_second_step_size.value_or(s.cycle_first_step_size);
  double momentum = 0;
  if (updates <= cycle) {
    const double height = cycle_height(s, updates);
    rates.learning_rate = s.cycle_min_lr + (s.cycle_max_lr - s.cycle_min_lr) * height;
    momentum = s.cycle_max_mom - (s.cycle_max_mom - s.cycle_min_mom) * height;
    if (updates == 0) momentum = s.cycle_min_mom;  // DeepSpeed's first
  } else {
    const double size = real(s.decay_step_size);
    const double past = size > 0 ? real(updates - cycle) / size : 0;
    rates.learning_rate = s.cycle_min_lr / (1 + s.decay_lr_rate * past);
    momentum = s.cycle_max_mom * (1 + s.decay_mom_rate * past);
  }
  if (s.cycle_momentum) {
    rates.beta1 = momentum;
    rates.beta2 = kBeta2;
  }
  return rates;
}

double range_test_rate(const Scheduler& s, std::uint64_t updates) {
  const double steps = real(updates) / real(s.lr_range_test_step_size);
  const double taken = s.lr_range_test_staircase ? std::floor(steps) : steps;
  return s.lr_range_test_min_lr * (1 + s.lr_range_test_step_rate * taken);
}
}  // namespace

StepRates Scheduler::rates(std::uint64_t updates, double learning_rate) const {
  switch (type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLR:
    case SchedulerType::kWarmupDecayLR:
      return {warmup_rate(*this, updates, learning_rate)};
    case SchedulerType::kWarmupCosineLR:
      return {cosine_rate(*this, updates, learning_rate)};
    case SchedulerType::kOneCycle:
      return one_cycle(*this, updates);
    case SchedulerType::kLRRangeTest:
      return {range_test_rate(*this, updates)};
  }
  return {learning_rate};
}

LossScale::LossScale(const LossScaling& scaling)
    : scaling_(scaling),
      value_(scaling.loss_scale > 0
                 ? scaling.loss_scale
                 : std::ldexp(1.0, static_cast<int>(scaling.initial_scale_power))),
      left_(scaling.hysteresis) {}

void LossScale::update(bool overflowed) {
  if (scaling_.loss_scale > 0) return;
  if (overflowed) {
    good_steps_ = 0;
    if (left_ > 1) {
      --left_;
      return;
    }
    if (value_ == scaling_.min_loss_scale) {
      throw Error(Code::kNotFinite,
                  "gradients overflow fp16 at the smallest loss scale, " +
                      base::format_number(value_) +
                      " (fp16.min_loss_scale), which cannot be lowered; nothing was updated. Train "
                      "in bf16, lower the learning rate, or set a smaller fp16.min_loss_scale");
    }
    value_ = std::max(value_ / 2, scaling_.min_loss_scale);
    return;
  }
  if (scaling_.consecutive_hysteresis) left_ = scaling_.hysteresis;
  const std::uint64_t before = good_steps_++;
  if (before == 0 || before % scaling_.loss_scale_window != 0) return;
  left_ = scaling_.hysteresis;
  value_ *= 2;
}
}  // namespace headrace
