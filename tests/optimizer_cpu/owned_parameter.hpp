// SPDX-License-Identifier: Apache-2.0
// owned_parameter.hpp: a parameter with arrays of its own, as a program that embeds CpuOptimizer
// has it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "headrace/cpu_optimizer.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::testing {
inline std::vector<std::byte> as_dtype(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * size_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&out[4 * i], &values[i], 4);
    } else {
      const std::uint16_t half =
          dtype == DType::kBf16 ? kernels::f32_to_bf16(values[i]) : kernels::f32_to_f16(values[i]);
      std::memcpy(&out[2 * i], &half, 2);
    }
  }
  return out;
}

// Uniform in [-scale, scale).
inline std::vector<float> noise(std::uint64_t elements, std::uint64_t seed, float scale) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  std::vector<float> values(elements);
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    value = (static_cast<float>(state >> 40) * 0x1p-23f - 1.0f) * scale;
  }
  return values;
}

struct OwnedParameter {
  std::string name = {};
  std::uint64_t number = 0, elements = 0;
  DType dtype = DType::kBf16, gradient_dtype = DType::kBf16;
  MasterLayout layout = MasterLayout::kSplit;
  std::vector<std::byte> weight = {}, master = {}, moment[2] = {}, scale[2] = {}, gradient = {};
  std::uint64_t t = 0;
  Hyperparameters hyperparameters = {};

  // Sized, and with weights; the state holds what nobody set.
  void allocate(const CpuOptimizer& optimizer) {
    const StateBytes bytes = optimizer.state_bytes(dtype, layout, elements);
    weight = as_dtype(dtype, noise(elements, number + 1, 1.0f));
    master.assign(bytes.master, std::byte{0xaa});
    for (int k = 0; k < 2; ++k) {
      moment[k].assign(bytes.moment[k], std::byte{0xaa});
      scale[k].assign(bytes.moment_scale[k], std::byte{0xaa});
    }
    new_gradient(1);
  }
  void new_gradient(std::uint64_t step) {
    gradient = as_dtype(gradient_dtype, noise(elements, 1000 * step + number, 0.01f));
  }
  ParameterState state() {
    return {.name = name,
            .number = number,
            .elements = elements,
            .dtype = dtype,
            .layout = layout,
            .weight = weight,
            .master = master,
            .moment = {moment[0], moment[1]},
            .moment_scale = {scale[0], scale[1]}};
  }
  ParameterUpdate update() {
    return {.state = state(),
            .gradient_dtype = gradient_dtype,
            .gradient = gradient,
            .t = t,
            .hyperparameters = hyperparameters};
  }
  bool same_values(const OwnedParameter& other) const {
    return weight == other.weight && master == other.master && moment[0] == other.moment[0] &&
           moment[1] == other.moment[1] && scale[0] == other.scale[0] && scale[1] == other.scale[1];
  }
};
}  // namespace headrace::testing
