// SPDX-License-Identifier: Apache-2.0
// headrace/torch/buffer_list.hpp: the tensors of offloaded modules that stay with torch.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/torch/module_parameters.hpp"
#include "headrace/torch/place.hpp"

namespace headrace::torch::detail {
// Buffers of offloaded modules, and parameters that add_rest() left out because they were frozen.
// Each appears once, under its name in the first module that had it.
class BufferList {
 public:
  void add(const std::string& group, const ::torch::nn::Module& module) {
    for (const auto& item : module.named_buffers(/*recurse=*/true)) {
      if (item.value().defined()) add(full_name(group, item.key()), item.value());
    }
  }
  // Adds a parameter that add_rest() left out, which must stay frozen.
  void add_frozen(const std::string& full_name, const at::Tensor& parameter) {
    frozen_.emplace_back(full_name, parameter);
    add(full_name, parameter);
  }
  // Throws if a step would leave out a parameter that is trained.
  void require_frozen() const {
    for (const auto& [parameter, tensor] : frozen_) {
      if (!tensor.requires_grad()) continue;
      throw Error(Code::kWrongState,
                  "parameter '" + parameter +
                      "' was frozen when add_rest() left it out, and is trained now: the engine "
                      "does not have it and would never update it. Unfreeze it before add_rest(), "
                      "and freeze it again afterwards.");
    }
  }
  // Moves the buffers that are in CPU memory to the place where the parameters are used.
  void move_to(const Place& place) {
    for (auto& [name, tensor] : buffers_) {
      if (!place.is_cpu() && tensor.device().is_cpu()) tensor.set_data(tensor.to(place.device()));
    }
  }
  const NamedTensors& all() const noexcept { return buffers_; }
  // The buffers, without the frozen parameters.
  NamedTensors of_modules() const {
    NamedTensors buffers = buffers_;
    std::erase_if(buffers, [&](const auto& buffer) {
      return std::ranges::any_of(
          frozen_, [&](const auto& parameter) { return parameter.second.is_same(buffer.second); });
    });
    return buffers;
  }

 private:
  void add(const std::string& full_name, const at::Tensor& tensor) {
    if (seen_.insert(tensor.unsafeGetTensorImpl()).second) buffers_.emplace_back(full_name, tensor);
  }

  NamedTensors buffers_;  // kept alive, so that no other tensor gets the address of one
  NamedTensors frozen_;   // the parameters that must stay frozen
  std::unordered_set<const c10::TensorImpl*> seen_;
};
}  // namespace headrace::torch::detail
