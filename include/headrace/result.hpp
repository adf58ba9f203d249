// SPDX-License-Identifier: Apache-2.0
// headrace/result.hpp: the result of a step.
#pragma once
#include <cstdint>

namespace headrace {
struct StepResult {
  std::uint64_t step = 0;                // 1 for the first step; if skipped, the previous number
  double gradient_norm = 0;              // of the scaled gradients, before clipping, over all ranks
  double clip_factor = 1;                // the factor that clipping applied
  std::uint64_t parameters_updated = 0;  // parameters with a gradient, in this rank's shards
  std::uint64_t parameters_left_alone = 0;
  // With headrace.non_finite "skip": a gradient held NaN or infinity, so the step discarded all
  // gradients and updated nothing.
  bool skipped = false;
  std::uint64_t non_finite_gradients = 0;  // values, over all ranks
};
}  // namespace headrace
