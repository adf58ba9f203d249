// SPDX-License-Identifier: Apache-2.0
#include "engine/stepper.hpp"

#include <limits>
#include <string>
#include <utility>

#include "headrace/error.hpp"
#include "kernels/random_bits.hpp"
#include "optimizer_cpu/clipping.hpp"
#include "optimizer_cpu/hyperparameter_checks.hpp"

namespace headrace::engine {
const partition::RegisteredParameter& Stepper::require_taken(const char* call, ParameterId id,
                                                             const void* gradient, DType dtype,
                                                             bool lends) const {
  const partition::RegisteredParameter& parameter = p_.registry.parameter(id);
  const auto refuse = [&](Code code, const std::string& why) {
    throw Error(code, std::string(call) + " of '" + parameter.full_name + "': " + why);
  };
  if (gradient == nullptr) refuse(Code::kInvalidArgument, "a null pointer");
  refuse_frozen(p_.registry, id, call, "takes no gradient");
  if (dtype == DType::kU8) {
    refuse(
        Code::kInvalidArgument,
        "the gradient is U8, which is no number; nothing was taken. Give it in F32, BF16 or F16");
  }
  const partition::RegisteredGroup& group = p_.registry.group(parameter.group);
  if (group.lends_gradients != lends) {
    refuse(Code::kWrongState,
           "group '" + group.name +
               (lends ? "' was not announced as one that lends its gradients; nothing was taken. "
                        "Call add_gradient(), or expect_lent_gradients() before freeze()."
                      : "' lends its gradients, so the engine has no memory for them; nothing was "
                        "taken. Call lend_gradient()."));
  }
  return parameter;
}

void Stepper::lend_gradient(ParameterId id, const void* gradient, DType dtype) {
  const auto& parameter = require_taken("lend_gradient", id, gradient, dtype, /*lends=*/true);
  const auto span = p_.calls.span("lend_gradient", parameter.group.index,
                                  parameter.spec.elements() * size_bytes(dtype));
  p_.gradients.lend(id, gradient, dtype);
}

void Stepper::add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  const auto& parameter = require_taken("add_gradient", id, gradient, dtype, /*lends=*/false);
  const auto span = p_.calls.span("add_gradient", parameter.group.index,
                                  parameter.spec.elements() * size_bytes(dtype));
  p_.gradients.add(id, gradient, dtype, stream);
}

void Stepper::refuse_change_before_repeat(const char* call) const {
  if (!p_.gradients.agreed()) return;
  throw Error(Code::kWrongState,
              std::string(call) + ": step " + std::to_string(p_.counts.step + 1) +
                  " failed on this rank after the ranks had agreed on it: nothing was changed; "
                  "repeat the step first, or call discard_gradients() on every rank");
}

// Random bits follow from the count (packed_gradients.hpp).
void Stepper::refuse_change_of_rounding(const partition::RegisteredParameter& parameter) {
  if (!p_.plan.wire.packed_gradients) return;
  p_.gradients.leave_order();
  if (!p_.gradients.sums().any_received()) return;  // the same on every rank
  throw Error(Code::kWrongState,
              "set_step_count of '" + parameter.full_name +
                  "': gradients of this step have been added up, rounded for the count as it is "
                  "(zero_quantized_gradients): nothing was changed; call it after step(), or after "
                  "discard_gradients() on every rank");
}

// The setting is the trainer's to pass on, since only it knows whether gradients are scaled.
void Stepper::warn_of_unused_clipping(const StepOptions& options) {
  if (p_.settings.gradient_clipping <= 0 || options.max_norm > 0) return;
  if (std::exchange(told_of_clipping_, true)) return;
  p_.log(LogLevel::kWarning,
         "gradient_clipping is " + std::to_string(p_.settings.gradient_clipping) +
             ", but step() was called without max_norm: nothing is clipped. Pass "
             "StepOptions::max_norm, or leave the setting out.");
}

void Stepper::warn_of_no_gradients(const StepResult& result) {
  if (result.parameters_updated > 0 || std::exchange(told_of_no_gradients_, true)) return;
  p_.log(
      LogLevel::kWarning,
      "step " + std::to_string(result.step) +
          ": no gradient had arrived since the step before, so nothing was updated. Hand gradients "
          "over before step(), in LibTorch by backward(). This is said once.");
}

// Prepares the step of each parameter that received a gradient.
void Stepper::prepare_steps(const StepOptions& options, double factor, StepResult& result) try {
  for (std::uint32_t i = 0; i < p_.partition.parameters.size(); ++i) {
    if (p_.gradients.sums().received()[i] == 0) {
      ++result.parameters_left_alone;
      continue;
    }
    ++result.parameters_updated;
    const Hyperparameters& values =
        p_.registry.hyperparameters(p_.registry.parameter({i}).spec.hyperparameters);
    const std::uint64_t t = p_.counts.steps[i] + 1;
    p_.updates.steps()[i] = optimizer_cpu::make_update_step(p_.settings.optimizer, values,
                                                            options.learning_rate, t, factor);
    optimizer_cpu::check_step_size(options, values, p_.updates.steps()[i],
                                   p_.registry.parameter({i}).full_name);
    p_.updates.steps()[i].random_key = kernels::random_key(p_.settings.rounding_seed, i, t);
  }
} catch (const Error&) {
  p_.gradients.forget_agreement();  // on every rank, from the same values
  throw;
}

StepResult Stepper::skip_or_refuse(const ranks::GradientTotals& totals) {
  const auto values = static_cast<std::uint64_t>(totals.non_finite);
  const std::string what =
      (totals.first_non_finite.empty() ? std::string("a gradient on another rank")
                                       : "the gradient of '" + totals.first_non_finite + "'") +
      " holds NaN or infinity in step " + std::to_string(p_.counts.step + p_.counts.skipped + 1) +
      " (" + std::to_string(values) + " values in all); nothing was updated";
  if (p_.settings.non_finite == NonFinite::kStop) {
    throw Error(Code::kNotFinite,
                what +
                    ". Call discard_gradients() to skip the step, set headrace.non_finite to "
                    "skip such steps, or stop.");
  }
  p_.log(LogLevel::kWarning, what + ", the step is skipped");
  p_.gradients.clear();
  ++p_.counts.skipped;
  if (p_.epochs != nullptr) p_.epochs->note_step();
  StepResult result;
  result.step = p_.counts.step;
  result.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  result.clip_factor = 0;
  result.parameters_left_alone = p_.partition.parameters.size();
  result.skipped = true;
  result.non_finite_gradients = values;
  return result;
}

StepResult Stepper::step(const StepOptions& options) {
  optimizer_cpu::check_step_options(options);
  warn_of_unused_clipping(options);
  p_.leases.refuse_any_in_slot("step");
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g)
    p_.states.require_whole({g}, "step");
  const auto span = p_.calls.span("step");
  p_.calls.finish_updates("step");
  if (p_.epochs != nullptr) p_.epochs->settle();
  const ranks::GradientTotals totals =
      p_.gradients.finish({options, p_.counts.steps, holds_commits()});
  if (p_.epochs != nullptr) p_.epochs->note_met(totals.holds_commits);
  if (totals.non_finite > 0) return skip_or_refuse(totals);
  StepResult result;
  result.step = p_.counts.step + 1;
  const optimizer_cpu::Clipping clipping = optimizer_cpu::clipping_of(totals.sum_squares, options);
  result.gradient_norm = clipping.norm;
  result.clip_factor = clipping.factor;
  prepare_steps(options, static_cast<double>(options.gradient_scale) * result.clip_factor, result);
  warn_of_no_gradients(result);
  const bool deferred = p_.plan.deferred;
  const bool can_undo = !deferred && p_.epochs != nullptr && p_.epochs->at_a_commit();
  try {
    p_.calls.run([&] { return deferred ? defer_update() : update_now(); });
  } catch (const std::exception& error) {
    if (!deferred && !p_.updates.began()) throw;
    // Some tiles may be at step t and others at t - 1. Without a store, the old bytes are gone.
    if (can_undo) undo_update(error);
    p_.failure.fail(error.what());
    if (p_.epochs == nullptr || can_undo) throw;
    std::rethrow_exception(with_way_on(std::current_exception(),
                                       "the step before it was not committed (headrace.durable)",
                                       p_.epochs->durable_step()));
  }
  count_step();
  return result;
}

// The drive's errors alone: after one of a device or of a check, memory may hold anything.
void Stepper::undo_update(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  if (known == nullptr || p_.failure.ended() || !is_of_a_drive(*known)) return;
  try {
    p_.epochs->go_back();
  } catch (const std::exception& again) {
    p_.log(LogLevel::kError,
           std::string("the state before the failed step could not be read from the store: ") +
               again.what());
    return;
  }
  throw Error(known->code(),
              std::string(known->what()) + "; step " + std::to_string(p_.counts.step + 1) +
                  " was undone, and the gradients are kept: call step() again, or close the engine",
              known->sys_errno());
}

void Stepper::count_step() {
  const std::uint8_t* const received = p_.gradients.sums().received();
  for (std::uint32_t i = 0; i < p_.counts.steps.size(); ++i) {
    p_.counts.steps[i] += received[i];
    p_.counts.weight_changes[p_.registry.parameter({i}).group.index] += received[i];
  }
  p_.gradients.clear();
  ++p_.counts.step;
  if (p_.epochs != nullptr) p_.epochs->note_step();
  if (p_.trace != nullptr) p_.trace->set_step(p_.counts.step + 1);
}

async::Task<> Stepper::update_now() {
  co_await p_.values.let_go();
  co_await p_.gather_slots.invalidate();
  p_.updates.start(0);
  co_await p_.updates.finish();
  p_.gather_slots.next_step();
}

// Returns while the updates run, but for groups that the trainer holds on to: those are read
// without another call that could wait.
async::Task<> Stepper::defer_update() {
  co_await p_.values.let_go();
  co_await p_.gather_slots.invalidate();
  p_.updates.start(p_.counts.step + 1);
  p_.gather_slots.next_step();
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g) {
    if (p_.leases.leased_in_place({g})) co_await p_.pending.until_passed({g});
  }
}

void Stepper::set_step_count(ParameterId id, std::uint64_t steps) {
  const partition::RegisteredParameter& parameter = p_.registry.parameter(id);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 48;
  if (steps > kMost) {
    throw Error(Code::kInvalidArgument, "set_step_count of '" + parameter.full_name + "' to " +
                                            std::to_string(steps) +
                                            ": 2^48 is the most; the count is as it was");
  }
  p_.states.require_some(parameter.group, "set_step_count");
  refuse_change_before_repeat("set_step_count");
  refuse_change_of_rounding(parameter);
  p_.counts.steps[id.index] = steps;
}
}  // namespace headrace::engine
