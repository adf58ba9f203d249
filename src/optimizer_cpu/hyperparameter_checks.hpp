// SPDX-License-Identifier: Apache-2.0
// hyperparameter_checks.hpp: checks the constants of an update.
#pragma once
#include <string_view>

#include "headrace/optimizer.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
// Throws Error kInvalidArgument for the first value that is out of range, or that the rule or the
// codec cannot use, and names it. The message includes `consequence`.
void check_hyperparameters(OptimizerRule rule, MomentCodec moments, const Hyperparameters& values,
                           const char* consequence = "they were not taken");
// The same for an option that is negative or not finite.
void check_step_options(const StepOptions& options);
// The same for `step`, computed from both for the parameter `name`, if its step size or its decay
// overflowed.
void check_step_size(const StepOptions& options, const Hyperparameters& values,
                     const UpdateStep& step, std::string_view name);
}  // namespace headrace::optimizer_cpu
