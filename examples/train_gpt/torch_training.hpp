// SPDX-License-Identifier: Apache-2.0
// torch_training.hpp: what training with Headrace and training with torch alone have in common: the
// passes over the model, and hyperparameters.
#pragma once
#include <ATen/ATen.h>

#include <utility>

#include "headrace/optimizer.hpp"
#include "model.hpp"
#include "training.hpp"

namespace train_gpt {
inline headrace::Hyperparameters decayed_hyperparameters(const Options& options,
                                                         headrace::OptimizerRule rule) {
  headrace::Hyperparameters values = {.beta1 = static_cast<float>(kBeta1),
                                      .beta2 = static_cast<float>(kBeta2),
                                      .eps = static_cast<float>(kEps),
                                      .weight_decay = static_cast<float>(options.weight_decay)};
  // The rule sgd keeps none, and is refused with one.
  if (rule == headrace::OptimizerRule::kSgdMomentum)
    values.momentum = static_cast<float>(kMomentum);
  return values;
}
// Norms and biases are not decayed.
inline headrace::Hyperparameters kept_hyperparameters(const Options& options,
                                                      headrace::OptimizerRule rule) {
  headrace::Hyperparameters kept = decayed_hyperparameters(options, rule);
  kept.weight_decay = 0;
  return kept;
}
inline bool is_decayed(const at::Tensor& parameter) { return parameter.dim() >= 2; }

class TorchTraining : public Training {
 public:
  double forward(const Batch& batch) override {
    loss_ = loss(batch);
    return loss_.item<double>();
  }
  void backward() override { std::exchange(loss_, {}).backward(); }
  double evaluate(const Batch& batch) override {
    const at::NoGradGuard no_grad;
    return loss(batch).item<double>();
  }

 protected:
  void drop_loss() { loss_ = at::Tensor(); }

 private:
  virtual at::Tensor scores(const at::Tensor& inputs) = 0;
  at::Tensor loss(const Batch& batch) {
    const Tokens tokens = tokens_of(batch);
    return loss_of(scores(tokens.inputs), tokens.targets);
  }

  at::Tensor loss_;  // with the graph that backward() runs
};
}  // namespace train_gpt
