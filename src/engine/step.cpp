// SPDX-License-Identifier: Apache-2.0
// step.cpp: gradients in, the global norm, and what a step means for each parameter; then the
// update of every tile (updates.hpp), which a step waits for, or the calls after it.
#include <limits>
#include <string>
#include <utility>

#include "base/random_bits.hpp"
#include "engine/engine_core.hpp"
#include "optimizer_cpu/clipping.hpp"
#include "optimizer_cpu/hyperparameter_checks.hpp"

namespace headrace {
void EngineCore::add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  Frozen& f = ready("add_gradient");
  registry_.parameter(id);
  if (gradient == nullptr) {
    throw Error(Code::kInvalidArgument,
                "add_gradient of '" + registry_.parameter(id).full_name + "': a null pointer");
  }
  refuse_frozen(id, "add_gradient", "takes no gradient");
  const auto span = trainer_span("add_gradient", registry_.parameter(id).group.index,
                                 registry_.parameter(id).spec.elements() * size_bytes(dtype));
  f.gradients->add(id, gradient, dtype, stream);
}

void EngineCore::discard_gradients() { ready("discard_gradients").gradients->discard(); }

// A step that some ranks have made and this one is to repeat is made with what they used.
void EngineCore::refuse_change_before_repeat(const Frozen& f, const char* call) const {
  if (!f.gradients->agreed()) return;
  throw Error(Code::kWrongState,
              std::string(call) + ": step " + std::to_string(steps_ + 1) +
                  " failed on this rank after the ranks had agreed on it: nothing was changed; "
                  "repeat the step first, or call discard_gradients() on every rank");
}

void EngineCore::set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values) {
  if (phase_ != Phase::kRegistering) {
    refuse_change_before_repeat(ready("set_hyperparameters"), "set_hyperparameters");
  }
  registry_.set_hyperparameters(set, values);
}

// The setting is the trainer's to pass on, since only it knows whether gradients are scaled.
void EngineCore::warn_of_unused_clipping(const StepOptions& options) {
  if (settings_.gradient_clipping <= 0 || options.max_norm > 0) return;
  if (std::exchange(told_of_clipping_, true)) return;
  log_(LogLevel::kWarning, "gradient_clipping is " + std::to_string(settings_.gradient_clipping) +
                               ", but step() was called without max_norm: nothing is clipped. Pass "
                               "StepOptions::max_norm, or leave the setting out.");
}

void EngineCore::warn_of_no_gradients(const StepResult& result) {
  if (result.parameters_updated > 0 || std::exchange(told_of_no_gradients_, true)) return;
  log_(
      LogLevel::kWarning,
      "step " + std::to_string(result.step) +
          ": no gradient had arrived since the step before, so nothing was updated. Hand gradients "
          "over before step(), in LibTorch by backward(). This is said once.");
}

// What the step means for each parameter that received a gradient.
void EngineCore::prepare_steps(Frozen& f, const StepOptions& options, double factor,
                               StepResult& result) {
  for (std::uint32_t i = 0; i < f.partition.parameters.size(); ++i) {
    if (f.gradients->received()[i] == 0) {
      ++result.parameters_left_alone;
      continue;
    }
    ++result.parameters_updated;
    const Hyperparameters& values =
        registry_.hyperparameters(registry_.parameter({i}).spec.hyperparameters);
    const std::uint64_t t = f.step_counts[i] + 1;
    f.updates->steps()[i] = optimizer_cpu::make_update_step(settings_.optimizer, values,
                                                            options.learning_rate, t, factor);
    optimizer_cpu::check_step_size(options, values, f.updates->steps()[i],
                                   registry_.parameter({i}).full_name);
    f.updates->steps()[i].random_key = base::random_key(settings_.rounding_seed, i, t);
  }
}

StepResult EngineCore::skip_or_refuse(Frozen& f, const engine::GradientTotals& totals) {
  const auto values = static_cast<std::uint64_t>(totals.non_finite);
  const std::string what =
      (totals.first_non_finite.empty() ? std::string("a gradient on another rank")
                                       : "the gradient of '" + totals.first_non_finite + "'") +
      " holds NaN or infinity in step " + std::to_string(steps_ + steps_skipped_ + 1) + " (" +
      std::to_string(values) + " values in all); nothing was updated";
  if (settings_.non_finite == NonFinite::kStop) {
    throw Error(Code::kNotFinite,
                what +
                    ". Call discard_gradients() to skip the step, set headrace.non_finite to "
                    "skip such steps, or stop.");
  }
  log_(LogLevel::kWarning, what + ", the step is skipped");
  f.gradients->clear();
  ++steps_skipped_;
  StepResult result;
  result.step = steps_;
  result.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  result.clip_factor = 0;
  result.parameters_left_alone = f.partition.parameters.size();
  result.skipped = true;
  result.non_finite_gradients = values;
  return result;
}

StepResult EngineCore::step(const StepOptions& options) {
  Frozen& f = ready("step");
  optimizer_cpu::check_step_options(options);
  warn_of_unused_clipping(options);
  refuse_lease(f.buffers->leased_group(), "step");
  for (std::uint32_t g = 0; g < f.group_values.size(); ++g) require_loaded(f, {g}, "step");
  const auto span = trainer_span("step");
  finish_updates("step");
  const engine::GradientTotals totals = f.gradients->finish({options, f.step_counts});
  if (totals.non_finite > 0) return skip_or_refuse(f, totals);
  StepResult result;
  result.step = steps_ + 1;
  const optimizer_cpu::Clipping clipping = optimizer_cpu::clipping_of(totals.sum_squares, options);
  result.gradient_norm = clipping.norm;
  result.clip_factor = clipping.factor;
  prepare_steps(f, options, static_cast<double>(options.gradient_scale) * result.clip_factor,
                result);
  warn_of_no_gradients(result);
  const bool deferred = f.plan.deferred;
  try {
    on_conductor([&] { return deferred ? defer_update() : update_now(); });
  } catch (const std::exception& error) {
    // Once one tile is at step t and another at t - 1 there is no way back.
    if (deferred || f.updates->began()) fail(error.what());
    throw;
  }
  for (std::uint32_t i = 0; i < f.step_counts.size(); ++i) {
    f.step_counts[i] += f.gradients->received()[i];
    f.weight_changes[registry_.parameter({i}).group.index] += f.gradients->received()[i];
  }
  f.gradients->clear();
  ++steps_;
  if (f.trace) f.trace->set_step(steps_ + 1);
  return result;
}

async::Task<> EngineCore::update_now() {
  Frozen& f = *frozen_;
  co_await let_go();
  co_await f.buffers->invalidate();
  f.updates->start(0);
  co_await f.updates->finish();
  f.buffers->next_step();
}

// Returns while the updates run, but for groups that the trainer holds on to: those are read
// without another call that could wait.
async::Task<> EngineCore::defer_update() {
  Frozen& f = *frozen_;
  co_await let_go();
  co_await f.buffers->invalidate();
  f.updates->start(steps_ + 1);
  f.buffers->next_step();
  for (std::uint32_t g = 0; g < f.in_place_leases.size(); ++g) {
    if (f.in_place_leases[g].load() != 0) co_await f.pending->until_passed({g});
  }
}

// A gradient that several ranks have begun to reduce is waited for to the end.
void EngineCore::until_passed(GroupId group, const char* call) {
  if (!frozen_->pending->passes_left(group)) return;
  const auto wait = [&](const engine::GiveUp* give_up) {
    return frozen_->pending->until_passed(group, engine::Waiting::kNow, give_up);
  };
  if (frozen_->partition.world_size > 1) return on_conductor([&] { return wait(nullptr); });
  patiently(call, wait);
}

void EngineCore::finish_updates(const char* call) {
  if (!frozen_->plan.deferred) return;
  patiently(call, [&](const engine::GiveUp* give_up) { return frozen_->updates->finish(give_up); });
}

void EngineCore::finish_step() {
  ready("finish_step");
  const auto span = trainer_span("finish_step");
  finish_updates("finish_step");
}
}  // namespace headrace
