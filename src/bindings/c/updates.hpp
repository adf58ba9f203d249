// SPDX-License-Identifier: Apache-2.0
// updates.hpp: the options of an update, which engines and optimizers share.
#pragma once
#include "headrace/c.h"
#include "headrace/optimizer.hpp"

namespace headrace::bindings {
Hyperparameters hyperparameters_of(const headrace_hyperparameters* given);
// Null: the defaults.
StepOptions step_options_of(const headrace_step_options* given);
}  // namespace headrace::bindings
