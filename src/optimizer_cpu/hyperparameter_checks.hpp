// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headrace/optimizer.hpp"

namespace headrace::optimizer_cpu {
// Throws Error kInvalidArgument naming the first that is no number of its range, or that the rule
// or the codec has no use for.
void check_hyperparameters(OptimizerRule rule, MomentCodec moments, const Hyperparameters& values);
}  // namespace headrace::optimizer_cpu
