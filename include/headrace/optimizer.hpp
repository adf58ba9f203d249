// SPDX-License-Identifier: Apache-2.0
// headrace/optimizer.hpp: AdamW's constants, and what may change from step to step.
#pragma once

namespace headrace {
// One set serves any number of parameters. AdamW, Loshchilov and Hutter 2019 (arXiv 1711.05101),
// algorithm 2, with t counted per parameter:
//   p -= lr * weight_decay * p
//   m  = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
struct Hyperparameters {
  float learning_rate_scale = 1.0f;  // times StepOptions::learning_rate
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.01f;
};

struct StepOptions {
  float learning_rate = 1e-3f;
  // Multiplies every gradient: 1 / (accumulation * world_size) averages.
  float gradient_scale = 1.0f;
  // Global-norm clipping; 0 is off. Factor: min(1, max_norm / (norm + 1e-6)).
  float max_norm = 0.0f;
};
}  // namespace headrace
