// SPDX-License-Identifier: Apache-2.0
// checkpointed_block.hpp: activation checkpointing by LibTorch alone, which brings none of its own:
// forward keeps the block's input, backward runs the block again. For --plain; with an engine
// headrace::torch::Offload::checkpoint() does it.
#pragma once
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model.hpp"

namespace train_gpt {
// apply(x, block) gives block->forward(x). `x` requires a gradient: it is what brings backward
// here. The block draws no random numbers and changes no input, so its second run is its first.
struct CheckpointedBlock : torch::autograd::Function<CheckpointedBlock> {
  using Tensors = torch::autograd::variable_list;

  struct Kept : torch::CustomClassHolder {
    explicit Kept(Block block) : block(std::move(block)) {}
    Block block;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            Block block) {
    context->save_for_backward({x});
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(block));
    return block->forward(x);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const auto kept = context->saved_data["block"].toCapsule();
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    at::Tensor output;
    {
      const at::AutoGradMode with_gradients(true);
      output = static_cast<Kept*>(kept.get())->block->forward(x);
    }
    torch::autograd::backward({output}, gradients);
    return {x.grad(), at::Tensor()};  // none for the block
  }
};
}  // namespace train_gpt
