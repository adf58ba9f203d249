// SPDX-License-Identifier: Apache-2.0
// headrace/torch/tensors.hpp: finds the tensors in a block's result.
//
// This header recognizes Tensor, and optional, pair, tuple, array, vector, map and any other range
// of these, nested to any depth. Numbers and strings hold no tensors. For a struct of your own, add
// an overload in its namespace:
//
//   template <class See>
//   void visit_tensors(const MyOutput& out, See&& see) { see(out.logits); see(out.cache); }
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

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

// Calls see(tensor) for every tensor in `value`, in the same order for values of the same
// structure. If `value` is not const, see() may replace the tensor, but user-defined types are not
// supported.
template <class T, class See>
void walk_tensors(T& value, const See& see) {
  constexpr bool kPlaces = !std::is_const_v<T>;
  using V = std::remove_const_t<T>;
  const auto deeper = [&see](auto& inner) { walk_tensors(inner, see); };
  const auto read = [&see](const auto& inner) { walk_tensors(inner, see); };
  if constexpr (kPlaces ? std::is_same_v<V, at::Tensor> : std::is_base_of_v<at::TensorBase, V>) {
    see(value);
  } else if constexpr (!kPlaces && requires { visit_tensors(value, read); }) {
    visit_tensors(value, read);
  } else if constexpr (HoldsNoTensor<V>) {
    return;
  } else if constexpr (kIsOptional<V>) {
    if (value) deeper(*value);
  } else if constexpr (TupleLike<V>) {
    std::apply([&deeper](auto&... inner) { (deeper(inner), ...); }, value);
  } else if constexpr (std::ranges::range<T>) {
    if constexpr (!HoldsNoTensor<std::ranges::range_value_t<T>>) {
      for (auto& inner : value) deeper(inner);
    }
  } else if constexpr (kPlaces) {
    static_assert(
        kUnknown<T>,
        "headrace::torch checkpoints a block whose inputs and result are tensors, numbers, "
        "strings, or optional, pair, tuple, array, vector or map of these. Capture any "
        "other value in the function, and return its tensors in one of these.");
  } else {
    static_assert(
        kUnknown<T>,
        "headrace::torch cannot find the tensors in this result of a block, so it could "
        "not bring the group's parameters back for its backward pass. Give the type an "
        "overload `template <class See> void visit_tensors(const T& value, See&& see)` in "
        "its own namespace that calls see() for every tensor in it.");
  }
}

// Whether walk_tensors() finds the tensors in a value of this type.
template <class T>
constexpr bool shows_its_tensors() {
  using V = std::remove_cvref_t<T>;
  constexpr auto kIgnores = [](const auto&) {};
  if constexpr (std::is_base_of_v<at::TensorBase, V> || HoldsNoTensor<V> ||
                requires(const V& value) { visit_tensors(value, kIgnores); }) {
    return true;
  } else if constexpr (kIsOptional<V>) {
    return shows_its_tensors<typename V::value_type>();
  } else if constexpr (TupleLike<V>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (shows_its_tensors<std::tuple_element_t<I, V>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<V>>());
  } else if constexpr (std::ranges::range<const V>) {
    return shows_its_tensors<std::ranges::range_value_t<const V>>();
  } else {
    return false;
  }
}
}  // namespace detail

// Calls see(tensor) for every tensor in `value`.
template <class T, class See>
void for_each_tensor(const T& value, See&& see) {
  detail::walk_tensors(value, see);
}
}  // namespace headrace::torch
