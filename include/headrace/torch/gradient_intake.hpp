// SPDX-License-Identifier: Apache-2.0
// headrace/torch/gradient_intake.hpp: hands each gradient to the engine as soon as torch has
// written it, and refuses a step if the gradients are not those that the trainer expects.
//
// taken_gradient.hpp describes what .grad() holds from then on.
#pragma once
#include <ATen/core/Tensor.h>

#include "headrace/engine.hpp"
#include "headrace/torch/bound_groups.hpp"

namespace headrace::torch::detail {
// Handles each gradient from its arrival to the step that uses it, or to discard().
class GradientIntake {
 public:
  GradientIntake(Engine& engine, const Place& place, const GroupBinder& binder, BoundGroups& bound)
      : engine_(engine), place_(place), binder_(binder), bound_(bound) {}

  // Hands the gradient to the engine and frees torch's memory. Call it when torch has written
  // parameter.grad().
  // Threads: the one that runs the parameter's part of backward.
  void take(OffloadedGroup& group, OffloadedParameter& parameter) {
    // Takes the gradient out of the parameter before anything can throw: a refused gradient must
    // not stay there until the next step.
    const at::Tensor gradient = parameter.gradient().take_from(parameter.tensor());
    if (gradient.defined()) hand_over(parameter, gradient);
    bound_.gradient_arrived(group, gradient.defined());
  }
  // Throws if step() would train on gradients that the user believes were dropped, or on part of a
  // backward pass.
  void require_whole(const Groups& groups) const {
    for (const auto& group : groups) {
      for (const OffloadedParameter& parameter : group->parameters()) refuse_if_reset(parameter);
    }
    bound_.refuse_partial_gradients();
  }
  // Called when the engine has used the gradients.
  void forget(const Groups& groups) {
    for (const auto& group : groups) {
      for (OffloadedParameter& parameter : group->parameters())
        parameter.gradient().forget(parameter.tensor());
    }
  }
  void discard(const Groups& groups) {
    bound_.forget_partial_gradients();
    forget(groups);
    for (const auto& group : groups) {
      for (const OffloadedParameter& parameter : group->parameters())
        parameter.tensor().mutable_grad().reset();
    }
    engine_.discard_gradients();
  }

 private:
  void hand_over(OffloadedParameter& parameter, const at::Tensor& gradient) {
    refuse_if_reset(parameter);
    bound_.refuse_partial_gradients();
    if (gradient.layout() != at::kStrided) {
      throw Error(Code::kUnsupported,
                  "the gradient of parameter '" + parameter.full_name() +
                      "' is sparse: only dense gradients are taken. Build the embedding with "
                      "sparse(false).");
    }
    if (engine_.spec(parameter.id()).frozen) refuse_frozen(parameter);
    const at::Tensor dense = gradient.detach().contiguous();
    engine_.add_gradient(parameter.id(), dense.const_data_ptr(),
                         dtype_of(dense, parameter.full_name() + ".grad"), place_.stream());
    binder_.wait_for_cpu_operators();  // the gradient has been read, so its tensor may go
    place_.keep_until_read(dense);
    parameter.gradient().mark_taken(parameter.tensor());
  }
  static void refuse_if_reset(const OffloadedParameter& parameter) {
    if (!parameter.gradient().was_reset(parameter.tensor())) return;
    throw Error(Code::kWrongState,
                "the gradient of parameter '" + parameter.full_name() +
                    "' was reset (zero_grad()) before step(): the engine has it, and would use "
                    "it. Call discard_gradients() to drop gradients; step() forgets them itself.");
  }
  [[noreturn]] static void refuse_frozen(const OffloadedParameter& parameter) {
    throw Error(Code::kInvalidArgument,
                "a gradient of parameter '" + parameter.full_name() +
                    "' arrived: it was frozen at freeze() (no requires_grad, or "
                    "expect_no_gradients()), so it has no memory for gradients and no optimizer "
                    "state; the gradient is dropped. Call expect_gradients(group) before freeze() "
                    "for parameters that are trained later, or leave requires_grad off.");
  }

  Engine& engine_;
  const Place& place_;
  const GroupBinder& binder_;
  BoundGroups& bound_;
};
}  // namespace headrace::torch::detail
