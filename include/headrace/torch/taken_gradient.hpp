// SPDX-License-Identifier: Apache-2.0
// headrace/torch/taken_gradient.hpp: what stands in parameter.grad() once the engine has the
// gradient.
//
// Were .grad() undefined, code that looks for gradients itself would find none and go on:
// clip_grad_norm_ would clip nothing and return 0, an optimizer would update nothing. So a tensor
// of the gradient's shape and type stands there, without memory, and torch throws its text at any
// read or write of it. torch adds the next gradient to .grad(), so a hook on the parameter takes
// the stand-in away just before. Example: a parameter that two backward passes reach before a step.
//
//   pass 1   torch writes .grad() = g1. take_from() has g1 out, the engine takes it, mark_taken()
//            puts the stand-in there.
//   trainer  clip_grad_norm_() reads .grad(): the stand-in's text, which names step's max_norm.
//   pass 2   the hook on the parameter runs first, sees the stand-in, and resets .grad(). torch
//            writes g2 there, not a sum with the stand-in. take_from(), the engine adds g2.
//   step()   forget(): the stand-in goes, and .grad() is undefined, as zero_grad() leaves it.
//
// zero_grad() between the passes takes the stand-in away without dropping g1. Then the hook finds
// .grad() undefined although g1 was taken: was_reset(), and step() refuses instead of using g1.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "headrace/torch/parameter_storage.hpp"

namespace headrace::torch::detail {
// Of one parameter. Thread: the one that runs its part of backward; others between two of those.
class TakenGradient {
 public:
  TakenGradient(const Place& place, const at::Tensor& parameter, const std::string& text)
      : stand_in_(ParameterStorage(place, parameter.scalar_type(), parameter.nbytes(), text)
                      .view(parameter.sizes())) {}

  // The gradient that torch has written; undefined if it had none. Gradients taken before stay
  // marked as taken, whatever becomes of this one.
  at::Tensor take_from(const at::Tensor& parameter) const {
    at::Tensor& place = parameter.mutable_grad();
    if (place.is_same(stand_in_)) return {};
    return std::exchange(place, state_->taken ? stand_in_ : at::Tensor());
  }
  void mark_taken(const at::Tensor& parameter) {
    if (!hook_) hook_ = hook(parameter);
    parameter.mutable_grad() = stand_in_;
    state_->taken = true;
  }
  // Whether somebody took the stand-in away (zero_grad()) while the engine has a gradient.
  bool was_reset(const at::Tensor& parameter) const {
    return state_->reset || (state_->taken && !parameter.mutable_grad().defined());
  }
  // After a step. A .grad() that the user has set is left alone.
  void forget(const at::Tensor& parameter) {
    *state_ = {};
    if (parameter.mutable_grad().is_same(stand_in_)) parameter.mutable_grad().reset();
  }
  // forget(), and the hook goes too.
  void leave(const at::Tensor& parameter) {
    forget(parameter);
    if (!hook_) return;
    try {
      parameter.remove_hook(*hook_);
    } catch (const c10::Error&) {  // somebody took them all off already
    }
    hook_.reset();
  }

 private:
  // Made with the first gradient: a parameter may have been frozen before. Through register_hook(),
  // since torch clears hooks set in other ways when the user registers one.
  unsigned hook(const at::Tensor& parameter) const {
    return parameter.register_hook(
        [stand_in = stand_in_, state = state_,
         weak = Weak(parameter.getIntrusivePtr())](const at::Tensor& gradient) {
          if (!gradient.defined()) return;  // nothing will arrive
          const auto impl = weak.lock();
          if (!impl) return;
          const at::Tensor leaf(impl);
          if (!accumulates(leaf)) return;
          if (leaf.mutable_grad().is_same(stand_in)) {
            leaf.mutable_grad().reset();
          } else if (state->taken && !leaf.mutable_grad().defined()) {
            state->reset = true;
          }
        });
  }
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  // False in autograd::grad(), which only looks at the gradient.
  static bool accumulates(const at::Tensor& leaf) {
    const auto* nodes = ::torch::autograd::get_current_graph_task_exec_info();
    if (nodes == nullptr || nodes->empty()) return true;
    const auto node = nodes->find(::torch::autograd::impl::try_get_grad_accumulator(leaf).get());
    return node != nodes->end() && node->second.needed_;
  }

  struct State {
    bool taken = false;  // the engine has a gradient of it that no step has used
    bool reset = false;  // and .grad() was undefined when the next one came
  };
  at::Tensor stand_in_;
  std::optional<unsigned> hook_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};
}  // namespace headrace::torch::detail
