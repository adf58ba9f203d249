// SPDX-License-Identifier: Apache-2.0
// hyperparameter_checks.hpp: what the numbers of an update may be.
#pragma once
#include <string_view>

#include "headrace/optimizer.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
// Throws Error kInvalidArgument naming the first that is no number of its range, or that the rule
// or the codec has no use for. `consequence` is said of it.
void check_hyperparameters(OptimizerRule rule, MomentCodec moments, const Hyperparameters& values,
                           const char* consequence = "they were not taken");
// The same for one that is negative or not finite.
void check_step_options(const StepOptions& options);
// The same for `step`, made of both for the parameter `name`, if its step size or its decay
// overflowed.
void check_step_size(const StepOptions& options, const Hyperparameters& values,
                     const UpdateStep& step, std::string_view name);
}  // namespace headrace::optimizer_cpu
