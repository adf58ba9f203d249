// SPDX-License-Identifier: Apache-2.0
// headrace/schedule.hpp: the values that a trainer changes from step to step: the learning rate, as
// DeepSpeed's five schedulers set it, and the loss scale of fp16 training. This header only
// computes these values: the trainer passes them on in StepOptions and Hyperparameters.
#pragma once
#include <cstdint>
#include <optional>

namespace headrace {
enum class SchedulerType : std::uint8_t {
  kNone,  // the learning rate does not change
  kWarmupLR,
  kWarmupDecayLR,
  kWarmupCosineLR,
  kOneCycle,
  kLRRangeTest
};
constexpr const char* name_of(SchedulerType type) noexcept {
  constexpr const char* kNames[] = {"none",           "WarmupLR", "WarmupDecayLR",
                                    "WarmupCosineLR", "OneCycle", "LRRangeTest"};
  return kNames[static_cast<std::uint8_t>(type)];
}
enum class WarmupType : std::uint8_t { kLog, kLinear };

// The rates for one step. A beta without a value does not change.
struct StepRates {
  double learning_rate = 0;
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
};

// The `scheduler` section of a settings file, with the names of its params. Below,
//   n   is the number of updates made so far; a skipped step makes none.
//   lr  is the optimizer's own learning rate.
//   W   is the number of warm-up steps, and T is `total_num_steps`.
//   w   is 0 for n = 0. For n >= 1 it is ln(n) / ln(W) with kLog, (n - 1) / W with kLinear.
// The learning rate:
//   kWarmupLR        min + (max - min) w while n <= W, then max
//   kWarmupDecayLR   as above up to W, then min + (max - min) (T - n + 1) / (T - W), at least min
//   kWarmupCosineLR  0 for n = 0; lr (r + (1 - r) w) while n <= W; then
//                    lr (c + (1 - c) (1 + cos(pi (n - W) / (T - W))) / 2), lr c from T on
//   kOneCycle        from min to max in `first` steps and back in `second`, with beta1 in the
//                    opposite direction (Smith 2018, arXiv 1803.09820). After that,
//                    min / (1 + rate k), and for beta1 max (1 + rate k), where k counts the steps
//                    since then, in units of decay_step_size.
//   kLRRangeTest     min (1 + rate n / step_size), as in section 4.1 of the same paper.
// DeepSpeed sets each rate after the previous update, so the first two rates of a warm-up are
// equal.
struct Scheduler {
  SchedulerType type = SchedulerType::kNone;

  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = {};  // default: lr for kWarmupLR, 0.001 for kWarmupDecayLR
  std::uint64_t warmup_num_steps = 1000;     // 1 counts as 2
  WarmupType warmup_type = WarmupType::kLog;
  std::uint64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 0.0001;

  double cycle_min_lr = 0, cycle_max_lr = 0, decay_lr_rate = 0;
  std::uint64_t cycle_first_step_size = 2000;
  std::optional<std::uint64_t> cycle_second_step_size = {};    // default: the first's
  std::uint64_t cycle_first_stair_count = 0;                   // 0: no stairs
  std::optional<std::uint64_t> cycle_second_stair_count = {};  // default: the first's
  std::uint64_t decay_step_size = 0;                           // 0: no decay
  bool cycle_momentum = true;  // for rules with betas; beta2 is then 0.99
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0;

  double lr_range_test_min_lr = 0.001, lr_range_test_step_rate = 1;
  std::uint64_t lr_range_test_step_size = 2000;
  bool lr_range_test_staircase = false;

  // The rates for the next update.
  //   updates        the number made so far
  //   learning_rate  the optimizer's own learning rate
  StepRates rates(std::uint64_t updates, double learning_rate) const;

  bool operator==(const Scheduler&) const = default;
};

// The keys of the `fp16` section.
struct LossScaling {
  double loss_scale = 0;  // 0: dynamic
  std::uint32_t initial_scale_power = 16;
  std::uint32_t loss_scale_window = 1000;
  std::uint32_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;

  bool operator==(const LossScaling&) const = default;
};

// The factor by which the trainer multiplies the loss before backward, so that small gradients do
// not vanish in fp16. Its inverse goes into StepOptions::gradient_scale. Each step that overflows
// uses up one unit of `hysteresis`, until one unit is left. From then on, each such step halves a
// dynamic scale. The scale doubles after loss_scale_window + 1 steps without overflow, which also
// restore `hysteresis`. With consecutive_hysteresis, each step without overflow restores
// `hysteresis`. For use by one thread at a time.
class LossScale {
 public:
  explicit LossScale(const LossScaling& scaling = {});
  double value() const noexcept { return value_; }
  // Call it after each step.
  //   overflowed  the step's gradients held NaN or infinity, and the step was skipped
  // Errors:  kNotFinite if a step overflowed at min_loss_scale, the lowest scale allowed.
  void update(bool overflowed);
  // The scale and its counts. To continue with them in another run, keep a copy.
  struct State {
    double value = 0;
    std::uint64_t good_steps = 0;
    std::uint32_t hysteresis_left = 0, reserved = 0;
  };
  State state() const noexcept { return {value_, good_steps_, left_, 0}; }
  void restore(const State& state) noexcept {
    value_ = state.value;
    good_steps_ = state.good_steps;
    left_ = state.hysteresis_left;
  }

 private:
  LossScaling scaling_;
  double value_;
  std::uint32_t left_;            // units of hysteresis
  std::uint64_t good_steps_ = 0;  // since the last overflow, or since the first step
};
}  // namespace headrace
