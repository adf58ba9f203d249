// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/hyperparameter_checks.hpp"

#include <charconv>
#include <cmath>
#include <string>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
namespace {
// As written: "-1e-09", whatever the locale, where std::to_string() has "-0.000000".
std::string text_of(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

class Checks {
 public:
  explicit Checks(const char* consequence) : consequence_(consequence) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& help) const {
    throw Error(Code::kInvalidArgument,
                "hyperparameters: " + what + ": " + consequence_ + "; " + help);
  }
  void share(const char* name, float value) const {
    if (value >= 0 && value < 1) return;  // false for NaN
    refuse(std::string(name) + " = " + text_of(value), "it must be at least 0 and below 1");
  }
  void not_negative(const char* name, float value) const {
    if (value >= 0 && std::isfinite(value)) return;
    refuse(std::string(name) + " = " + text_of(value), "it must be finite and not negative");
  }
  void finite(const char* name, float value) const {
    if (std::isfinite(value)) return;
    refuse(std::string(name) + " = " + text_of(value), "it must be finite");
  }

 private:
  const char* consequence_;
};
}  // namespace

void check_hyperparameters(OptimizerRule rule, MomentCodec moments, const Hyperparameters& v,
                           const char* consequence) {
  const Checks check(consequence);
  check.share("beta1", v.beta1);
  check.share("beta2", v.beta2);
  check.not_negative("eps", v.eps);
  check.not_negative("weight_decay", v.weight_decay);
  check.not_negative("momentum", v.momentum);
  check.not_negative("learning_rate_decay", v.learning_rate_decay);
  check.not_negative("learning_rate_scale", v.learning_rate_scale);
  check.finite("dampening", v.dampening);
  const bool divides = rule == OptimizerRule::kAdamW || rule == OptimizerRule::kAdam ||
                       rule == OptimizerRule::kAdagrad;
  if (divides && moments == MomentCodec::kBlock8 && v.eps == 0) {
    check.refuse(
        "eps = 0 with 8-bit moments, whose sums of squares may be rounded to almost nothing",
        "give an eps above 0");
  }
  if (rule == OptimizerRule::kSgd && v.momentum != 0) {
    check.refuse("momentum = " + text_of(v.momentum) + " with the rule sgd, which keeps none",
                 "take the rule sgd_momentum (headrace.optimizer in settings)");
  }
  if (rule == OptimizerRule::kSgd && v.nesterov) {
    check.refuse("nesterov with the rule sgd, which has no momentum",
                 "take the rule sgd_momentum (headrace.optimizer in settings)");
  }
  if (rule == OptimizerRule::kSgdMomentum && v.nesterov && (v.momentum == 0 || v.dampening != 0))
    check.refuse("nesterov", "it needs a momentum above 0 and no dampening");
}

void check_step_options(const StepOptions& o) {
  const auto refuse = [](const char* what, float value) {
    throw Error(Code::kInvalidArgument,
                std::string("step: ") + what + " = " + text_of(value) +
                    ": nothing was updated; it must be finite and not negative");
  };
  if (!std::isfinite(o.learning_rate) || o.learning_rate < 0)
    refuse("learning_rate", o.learning_rate);
  if (!std::isfinite(o.max_norm) || o.max_norm < 0) refuse("max_norm", o.max_norm);
  if (!std::isfinite(o.gradient_scale) || o.gradient_scale < 0)
    refuse("gradient_scale", o.gradient_scale);
}

void check_step_size(const StepOptions& o, const Hyperparameters& v, const UpdateStep& step,
                     std::string_view name) {
  if (std::isfinite(step.step_size) && std::isfinite(step.decay_factor)) return;
  throw Error(Code::kInvalidArgument,
              "'" + base::one_line(name) + "': learning_rate = " + text_of(o.learning_rate) +
                  " with learning_rate_scale = " + text_of(v.learning_rate_scale) +
                  " and weight_decay = " + text_of(v.weight_decay) +
                  " makes a step that no f32 holds: nothing was updated; lower them");
}
}  // namespace headrace::optimizer_cpu
