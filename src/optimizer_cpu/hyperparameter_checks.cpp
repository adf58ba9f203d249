// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/hyperparameter_checks.hpp"

#include <cmath>
#include <string>

#include "headrace/error.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
namespace {
[[noreturn]] void refuse(const std::string& what, const std::string& help) {
  throw Error(Code::kInvalidArgument,
              "hyperparameters: " + what + ": they were not taken; " + help);
}

void check_share(const char* name, float value) {
  if (value >= 0 && value < 1) return;  // false for NaN
  refuse(std::string(name) + " = " + std::to_string(value), "it must be at least 0 and below 1");
}
void check_not_negative(const char* name, float value) {
  if (value >= 0 && std::isfinite(value)) return;
  refuse(std::string(name) + " = " + std::to_string(value), "it must be finite and not negative");
}
}  // namespace

void check_hyperparameters(OptimizerRule rule, MomentCodec moments, const Hyperparameters& v) {
  check_share("beta1", v.beta1);
  check_share("beta2", v.beta2);
  check_not_negative("eps", v.eps);
  check_not_negative("weight_decay", v.weight_decay);
  check_not_negative("momentum", v.momentum);
  check_not_negative("learning_rate_decay", v.learning_rate_decay);
  if (!std::isfinite(v.learning_rate_scale))
    refuse("learning_rate_scale = " + std::to_string(v.learning_rate_scale), "it must be finite");
  if (!std::isfinite(v.dampening))
    refuse("dampening = " + std::to_string(v.dampening), "it must be finite");
  const bool divides = rule == OptimizerRule::kAdamW || rule == OptimizerRule::kAdam ||
                       rule == OptimizerRule::kAdagrad;
  if (divides && moments == MomentCodec::kBlock8 && v.eps == 0) {
    refuse("eps = 0 with 8-bit moments, whose sums of squares may be rounded to almost nothing",
           "give an eps above 0");
  }
  if (rule == OptimizerRule::kSgd && v.momentum != 0) {
    refuse("momentum = " + std::to_string(v.momentum) + " with the rule sgd, which keeps none",
           "set headrace.optimizer to sgd_momentum");
  }
  if (rule == OptimizerRule::kSgdMomentum && v.nesterov && (v.momentum == 0 || v.dampening != 0))
    refuse("nesterov", "it needs a momentum above 0 and no dampening");
}
}  // namespace headrace::optimizer_cpu
