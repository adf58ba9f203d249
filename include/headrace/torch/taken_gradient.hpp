// SPDX-License-Identifier: Apache-2.0
// headrace/torch/taken_gradient.hpp: the stand-in for parameter.grad() once the engine has the
// gradient.
//
// If .grad() were undefined, code that looks for gradients itself would find none and go on:
// clip_grad_norm_ would clip nothing and return 0, and an optimizer would update nothing. So a
// tensor of the gradient's shape and type, but without memory, stands in for the gradient. At any
// read or write of this stand-in, torch throws its text. torch would also add the next gradient to
// the stand-in, so a hook on the parameter removes the stand-in just before that. Example: two
// backward passes reach a parameter before a step.
//
//   pass 1   torch writes .grad() = g1. take_from() takes g1 out, the engine reads it, and
//            mark_taken() puts the stand-in there.
//   trainer  clip_grad_norm_() reads .grad(), and torch throws the stand-in's text, which names
//            max_norm.
//   pass 2   the hook on the parameter runs first, sees the stand-in, and resets .grad(). torch
//            writes g2 there, not a sum with the stand-in. take_from() takes g2 out, and the engine
//            adds it.
//   step()   forget(): the stand-in is removed, and .grad() is undefined, as zero_grad() leaves it.
//
// zero_grad() between the passes removes the stand-in, but the engine still has g1. The hook then
// finds .grad() undefined although g1 was taken, so was_reset() is true, and step() throws instead
// of using g1.
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
// The gradient of one parameter. Threads: the one that runs the parameter's part of backward;
// between such runs, any one thread.
class TakenGradient {
 public:
  TakenGradient(const Place& place, const at::Tensor& parameter, const std::string& text)
      : stand_in_(ParameterStorage(place, parameter.scalar_type(), parameter.nbytes(), text)
                      .view(parameter.sizes())) {}

  // Returns the gradient that torch has written; undefined if there is none. Gradients taken
  // earlier stay marked as taken, whatever happens to this one.
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
  // Whether other code removed the stand-in (zero_grad()) while the engine has a gradient.
  bool was_reset(const at::Tensor& parameter) const {
    return state_->reset || (state_->taken && !parameter.mutable_grad().defined());
  }
  // Call it after a step. A .grad() that the user has set is left alone.
  void forget(const at::Tensor& parameter) {
    *state_ = {};
    if (parameter.mutable_grad().is_same(stand_in_)) parameter.mutable_grad().reset();
  }
  // Does forget(), and also removes the hook.
  void leave(const at::Tensor& parameter) {
    forget(parameter);
    if (!hook_) return;
    try {
      parameter.remove_hook(*hook_);
    } catch (const c10::Error&) {  // other code has already removed all hooks
    }
    hook_.reset();
  }

 private:
  // The hook is made when the first gradient arrives, because the parameter may have been frozen
  // until then. It is set by register_hook(), because when the user registers a hook, torch clears
  // those that were set in other ways.
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

  // False in autograd::grad(), which only returns the gradient.
  static bool accumulates(const at::Tensor& leaf) {
    const auto* nodes = ::torch::autograd::get_current_graph_task_exec_info();
    if (nodes == nullptr || nodes->empty()) return true;
    const auto node = nodes->find(::torch::autograd::impl::try_get_grad_accumulator(leaf).get());
    return node != nodes->end() && node->second.needed_;
  }

  struct State {
    bool taken = false;  // the engine has a gradient that no step has used
    bool reset = false;  // and .grad() was undefined when the next one arrived
  };
  at::Tensor stand_in_;
  std::optional<unsigned> hook_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};
}  // namespace headrace::torch::detail
