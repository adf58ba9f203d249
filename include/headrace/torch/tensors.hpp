// SPDX-License-Identifier: Apache-2.0
// headrace/torch/tensors.hpp: finds the tensors in what a block returns.
//
// Tensor, optional, pair, tuple, array, vector, map and any other range of these are known, nested
// at will; numbers and strings hold none. A struct of your own gets an overload beside it, in its
// namespace:
//
//   template <class See>
//   void visit_tensors(const MyOutput& out, See&& see) { see(out.logits); see(out.cache); }
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace headrace::torch {
namespace detail {
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kUnknown = false;
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept HoldsNoTensor = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_null_pointer_v<T> ||
    std::is_convertible_v<const T&, std::string_view>;
}  // namespace detail

// Calls see(tensor) for every tensor in `value`.
template <class T, class See>
void for_each_tensor(const T& value, See&& see) {
  const auto deeper = [&see](const auto& inner) { for_each_tensor(inner, see); };
  if constexpr (std::is_base_of_v<at::TensorBase, T>) {
    see(value);
  } else if constexpr (requires { visit_tensors(value, deeper); }) {
    visit_tensors(value, deeper);
  } else if constexpr (detail::HoldsNoTensor<T>) {
    return;
  } else if constexpr (detail::kIsOptional<T>) {
    if (value) deeper(*value);
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&deeper](const auto&... inner) { (deeper(inner), ...); }, value);
  } else if constexpr (std::ranges::range<const T>) {
    for (const auto& inner : value) deeper(inner);
  } else {
    static_assert(detail::kUnknown<T>,
                  "headrace::torch cannot find the tensors in this result of a block, so it could "
                  "not bring the "
                  "group's parameters back for its backward pass. Give the type an overload "
                  "`template <class See> void visit_tensors(const T& value, See&& see)` in its own "
                  "namespace that "
                  "calls see() for every tensor in it.");
  }
}
}  // namespace headrace::torch
