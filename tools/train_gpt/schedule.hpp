// SPDX-License-Identifier: Apache-2.0
// schedule.hpp: the learning rate: a straight warm-up, then half a cosine down to the least.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace train_gpt {
struct Schedule {
  double peak = 1e-3;
  double least = 1e-4;
  std::uint64_t warmup_steps = 0;
  std::uint64_t steps = 1;

  // `step` is 1 for the first. Step `warmup_steps` has the peak, the last one the least.
  double learning_rate(std::uint64_t step) const noexcept {
    if (step <= warmup_steps)
      return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
    const std::uint64_t falling = steps - warmup_steps;
    const double done =
        std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(falling));
    return least + (peak - least) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
};
}  // namespace train_gpt
