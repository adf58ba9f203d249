// SPDX-License-Identifier: Apache-2.0
// clipping.hpp: the norm of a step's gradients, and what they are multiplied by for it.
#pragma once
#include "headrace/optimizer.hpp"
#include "headrace/result.hpp"

namespace headrace::optimizer_cpu {
struct Clipping {
  double norm = 0;    // of the scaled gradients
  double factor = 1;  // min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_; 1 without
                      // max_norm, and NaN where the norm is
};
// Of the sum of squares of the unscaled gradients; the same whatever the caller's float mode.
Clipping clipping_of(double sum_squares, const StepOptions& options) noexcept;
}  // namespace headrace::optimizer_cpu
