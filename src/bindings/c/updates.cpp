// SPDX-License-Identifier: Apache-2.0
#include "bindings/c/updates.hpp"

#include <cstddef>

#include "bindings/c/calls.hpp"

namespace headrace::bindings {
Hyperparameters hyperparameters_of(const headrace_hyperparameters* given) {
  const headrace_hyperparameters values = taken(given, headrace_hyperparameters_init, "values",
                                                offsetof(headrace_hyperparameters, momentum));
  return {.learning_rate_scale = values.learning_rate_scale,
          .beta1 = values.beta1,
          .beta2 = values.beta2,
          .eps = values.eps,
          .weight_decay = values.weight_decay,
          .momentum = values.momentum,
          .dampening = values.dampening,
          .learning_rate_decay = values.learning_rate_decay,
          .nesterov = values.nesterov != 0,
          .bias_correction = values.bias_correction != 0,
          .maximize = values.maximize != 0};
}

StepOptions step_options_of(const headrace_step_options* given) {
  const headrace_step_options options =
      taken_or_defaults(given, headrace_step_options_init, "options");
  return {.learning_rate = options.learning_rate,
          .gradient_scale = options.gradient_scale,
          .max_norm = options.max_norm};
}
}  // namespace headrace::bindings
