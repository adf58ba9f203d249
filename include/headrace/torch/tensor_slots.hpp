// SPDX-License-Identifier: Apache-2.0
// headrace/torch/tensor_slots.hpp: every place in a value where a tensor is, to put another there.
#pragma once
#include <ATen/core/Tensor.h>

#include <ranges>
#include <tuple>
#include <type_traits>

#include "headrace/torch/tensors.hpp"

namespace headrace::torch::detail {
// Calls see(at::Tensor&) for every tensor in `value`, in one order for values of one shape. Knows
// what for_each_tensor() knows, less types of the user's.
template <class T, class See>
void for_each_slot(T& value, See&& see) {
  const auto deeper = [&see](auto& inner) { for_each_slot(inner, see); };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    see(value);
  } else if constexpr (HoldsNoTensor<T>) {
    return;
  } else if constexpr (kIsOptional<T>) {
    if (value) deeper(*value);
  } else if constexpr (TupleLike<T>) {
    std::apply([&deeper](auto&... inner) { (deeper(inner), ...); }, value);
  } else if constexpr (std::ranges::range<T>) {
    if constexpr (!HoldsNoTensor<std::ranges::range_value_t<T>>) {
      for (auto& inner : value) deeper(inner);
    }
  } else {
    static_assert(
        kUnknown<T>,
        "headrace::torch checkpoints a block whose inputs and result are tensors, numbers, "
        "strings, or optional, pair, tuple, array, vector or map of these. Capture any "
        "other value in the function, and return its tensors in one of these.");
  }
}
}  // namespace headrace::torch::detail
