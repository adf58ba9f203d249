// SPDX-License-Identifier: Apache-2.0
// headrace/result.hpp: what a step did.
#pragma once
#include <cstdint>

namespace headrace {
struct StepResult {
  std::uint64_t step = 0;                // 1 for the first; of a skipped one, the last that was not
  double gradient_norm = 0;              // of the scaled gradients, before clipping, over all ranks
  double clip_factor = 1;                // what they were multiplied by
  std::uint64_t parameters_updated = 0;  // parameters that received a gradient, this rank's shards
  std::uint64_t parameters_left_alone = 0;
  // headrace.non_finite "skip": a gradient held NaN or infinity, so that all were discarded and
  // nothing was updated.
  bool skipped = false;
  std::uint64_t non_finite_gradients = 0;  // values, over all ranks
};
}  // namespace headrace
