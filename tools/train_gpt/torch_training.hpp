// SPDX-License-Identifier: Apache-2.0
// torch_training.hpp: parts that training with Headrace and with torch alone share: the passes over
// the model, and hyperparameters.
#pragma once
#include <ATen/ATen.h>

#include <initializer_list>
#include <utility>

#include "headrace/optimizer.hpp"
#include "model.hpp"
#include "training.hpp"

namespace train_gpt {
inline void take_betas(float beta1, float beta2,
                       std::initializer_list<headrace::Hyperparameters*> sets) {
  for (headrace::Hyperparameters* values : sets) {
    values->beta1 = beta1;
    values->beta2 = beta2;
  }
}
inline bool is_decayed(const at::Tensor& parameter) { return parameter.dim() >= 2; }

class TorchTraining : public Training {
 public:
  explicit TorchTraining(at::Device device) : device_(device) {}
  double forward(const Batch& batch) override {
    loss_ = loss(batch);
    return loss_.item<double>();
  }
  void backward(double loss_scale) override {
    at::Tensor loss = std::exchange(loss_, {});
    (loss_scale == 1 ? loss : loss * loss_scale).backward();
  }
  double evaluate(const Batch& batch) override {
    const at::NoGradGuard no_grad;
    return loss(batch).item<double>();
  }

 protected:
  void drop_loss() { loss_ = at::Tensor(); }
  at::Device device() const { return device_; }

 private:
  virtual at::Tensor scores(const at::Tensor& inputs) = 0;
  at::Tensor loss(const Batch& batch) {
    const Tokens tokens = tokens_of(batch, device_);
    return loss_of(scores(tokens.inputs), tokens.targets);
  }

  at::Device device_;
  at::Tensor loss_;  // with the graph that backward() runs
};
}  // namespace train_gpt
