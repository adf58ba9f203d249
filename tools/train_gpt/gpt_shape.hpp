// SPDX-License-Identifier: Apache-2.0
// gpt_shape.hpp: names and shapes of the parameters of a byte-level GPT of given sizes, without
// building it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/tensor.hpp"

namespace train_gpt {
constexpr std::int64_t kVocabulary = 256;

constexpr std::uint32_t kMostLayers = 10'000;
constexpr std::uint32_t kMostHidden = 1 << 17;
constexpr std::uint32_t kMostSequence = 1 << 20;

// Each from 1 to its most.
struct GptShape {
  std::uint32_t layers = 4;
  std::uint32_t hidden = 256;
  std::uint32_t heads = 4;
  std::uint32_t sequence = 128;
  headrace::DType dtype = headrace::DType::kBf16;  // of all weights
  bool products_in_f32 = false;                    // of linear layers and attention: products.hpp
};

struct NamedShape {
  std::string name;  // full: "<group>.<module>.<weight or bias>"
  std::vector<std::int64_t> shape;

  std::uint64_t elements() const noexcept {
    std::uint64_t n = 1;
    for (const std::int64_t size : shape) n *= static_cast<std::uint64_t>(size);
    return n;
  }
};

// Throws headrace::Error kInvalidArgument naming the options that do not fit together.
void check_shape(const GptShape& shape);
// In order of use.
std::vector<NamedShape> gpt_parameters(const GptShape& shape);
std::uint64_t count_elements(const std::vector<NamedShape>& parameters) noexcept;
}  // namespace train_gpt
