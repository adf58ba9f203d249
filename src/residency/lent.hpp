// SPDX-License-Identifier: Apache-2.0
// lent.hpp: where the trainer has the weights and gradients that it lends (Engine::lend_weights(),
// Engine::lend_gradient()).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "headrace/tensor.hpp"

namespace headrace::residency {
struct LentGradient {
  const std::byte* values = nullptr;
  DType dtype = DType::kF32;
};

// By parameter; null: not lent. The trainer's thread writes it while no tile is worked on.
struct Lent {
  explicit Lent(std::size_t parameters) : weights(parameters), gradients(parameters) {}
  static std::uint64_t bookkeeping_bytes(std::size_t parameters) noexcept {
    return parameters * (sizeof(std::byte*) + sizeof(LentGradient));
  }

  std::vector<std::byte*> weights;
  std::vector<LentGradient> gradients;
};
}  // namespace headrace::residency
