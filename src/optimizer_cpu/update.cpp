// SPDX-License-Identifier: Apache-2.0
// update.cpp: the constants of a step.
#include "optimizer_cpu/update.hpp"

#include <cmath>

#include "kernels/float_mode.hpp"

namespace headrace::optimizer_cpu {
namespace {
// By squaring, in plain multiplications: libm's pow() picks its own instructions, this is the same
// on every CPU.
double integer_power(double base, std::uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

// 1 - beta^t; 1 where it is not corrected.
double bias(const Hyperparameters& values, double beta, std::uint64_t t) {
  return values.bias_correction ? 1.0 - integer_power(beta, t) : 1.0;
}

// torch.optim.Adam, AdamW: Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1; Loshchilov and Hutter
// 2019 (arXiv 1711.05101), algorithm 2.
void set_adam(UpdateStep& step, const Hyperparameters& values, double rate, std::uint64_t t) {
  const double beta1 = values.beta1, beta2 = values.beta2;
  step.arithmetic = Arithmetic::kAdam;
  step.beta1 = values.beta1;
  step.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  step.beta2 = values.beta2;
  step.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  step.step_size = static_cast<float>(rate / bias(values, beta1, t));
  step.inverse_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(bias(values, beta2, t)));
  step.eps = values.eps;
}

// torch.optim.Adagrad: Duchi, Hazan and Singer 2011, figure 1, diagonal, with eps beside the root.
void set_adagrad(UpdateStep& step, const Hyperparameters& values, double rate, std::uint64_t t) {
  const double decay = values.learning_rate_decay;
  step.arithmetic = Arithmetic::kAdagrad;
  step.step_size = static_cast<float>(rate / (1.0 + static_cast<double>(t - 1) * decay));
  step.eps = values.eps;
}

// Chen et al. 2023 (arXiv 2302.06675), algorithm 2.
void set_lion(UpdateStep& step, const Hyperparameters& values, double rate) {
  step.arithmetic = Arithmetic::kLion;
  step.beta1 = values.beta1;
  step.one_minus_beta1 = static_cast<float>(1.0 - double{values.beta1});
  step.beta2 = values.beta2;
  step.one_minus_beta2 = static_cast<float>(1.0 - double{values.beta2});
  step.step_size = static_cast<float>(rate);
}

// torch.optim.SGD: Sutskever et al. 2013, equations 3 and 4, in torch's form. The first update
// takes the gradient undamped.
void set_sgd(UpdateStep& step, const Hyperparameters& values, double rate, std::uint64_t t) {
  step.arithmetic = Arithmetic::kMomentum;
  step.beta1 = values.momentum;
  step.one_minus_beta1 = t == 1 ? 1.0f : static_cast<float>(1.0 - double{values.dampening});
  step.lookahead = values.nesterov ? values.momentum : 0.0f;
  step.step_size = static_cast<float>(rate);
}

[[gnu::noinline]] UpdateStep constants_of(OptimizerRule rule, const Hyperparameters& values,
                                          double learning_rate, std::uint64_t t,
                                          double gradient_factor) {
  const double rate = learning_rate * values.learning_rate_scale;
  UpdateStep step;
  step.gradient_factor = static_cast<float>(values.maximize ? -gradient_factor : gradient_factor);
  if (decays_decoupled(rule)) {
    step.decay_factor = static_cast<float>(1.0 - rate * values.weight_decay);
  } else {
    step.l2 = values.weight_decay;
  }
  switch (rule) {
    case OptimizerRule::kAdamW:
    case OptimizerRule::kAdam:
      set_adam(step, values, rate, t);
      break;
    case OptimizerRule::kAdagrad:
      set_adagrad(step, values, rate, t);
      break;
    case OptimizerRule::kLion:
      set_lion(step, values, rate);
      break;
    case OptimizerRule::kSgdMomentum:
      set_sgd(step, values, rate, t);
      break;
    case OptimizerRule::kSgd:
      step.arithmetic = Arithmetic::kPlain;
      step.step_size = static_cast<float>(rate);
      break;
  }
  return step;
}
}  // namespace

UpdateStep make_update_step(OptimizerRule rule, const Hyperparameters& values, double learning_rate,
                            std::uint64_t t, double gradient_factor) {
  const kernels::DefaultFloatMode mode;
  return constants_of(rule, values, learning_rate, t, gradient_factor);
}
}  // namespace headrace::optimizer_cpu
