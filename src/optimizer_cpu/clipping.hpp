// SPDX-License-Identifier: Apache-2.0
// clipping.hpp: the norm of a step's gradients, and the factor that clips them.
#pragma once
#include "headrace/optimizer.hpp"
#include "headrace/result.hpp"

namespace headrace::optimizer_cpu {
struct Clipping {
  double norm = 0;    // of the scaled gradients
  double factor = 1;  // min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_; 1 without
                      // max_norm, and NaN if the norm is NaN
};
// `sum_squares` is of the unscaled gradients. The caller's float mode does not matter.
Clipping clipping_of(double sum_squares, const StepOptions& options) noexcept;
}  // namespace headrace::optimizer_cpu
