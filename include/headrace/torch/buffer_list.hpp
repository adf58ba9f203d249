// SPDX-License-Identifier: Apache-2.0
// headrace/torch/buffer_list.hpp: the tensors that stay torch's: buffers of offloaded modules, and
// parameters that add_rest() left out because they were frozen.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <unordered_set>

#include "headrace/torch/offloaded_group.hpp"

namespace headrace::torch::detail {
// Each once, by the name in the first module that had it.
class BufferList {
 public:
  void add(const std::string& group, const ::torch::nn::Module& module) {
    for (const auto& item : module.named_buffers(/*recurse=*/true)) {
      if (item.value().defined() && seen_.insert(item.value().unsafeGetTensorImpl()).second)
        buffers_.emplace_back(full_name(group, item.key()), item.value());
    }
  }
  void add(const std::string& full_name, const at::Tensor& tensor) {
    if (seen_.insert(tensor.unsafeGetTensorImpl()).second) buffers_.emplace_back(full_name, tensor);
  }
  // Those in CPU memory go where the parameters are used.
  void move_to(const Place& place) {
    for (auto& [name, tensor] : buffers_) {
      if (!place.is_cpu() && tensor.device().is_cpu()) tensor.set_data(tensor.to(place.device()));
    }
  }
  const NamedTensors& all() const noexcept { return buffers_; }

 private:
  NamedTensors buffers_;  // keeps the tensors, so that no other can come to lie at their address
  std::unordered_set<const c10::TensorImpl*> seen_;
};
}  // namespace headrace::torch::detail
