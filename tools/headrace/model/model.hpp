// SPDX-License-Identifier: Apache-2.0
// model.hpp: the shapes of a model's parameters, from a name, a Hugging Face directory or a file of
// shapes. No weight is read.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "partition/partition.hpp"

namespace headrace::tools {
// Counts of elements that would pass 64 bits stay at the largest such number.
struct ModelParameter {
  std::string name;  // "h.0.mlp.c_fc.weight"; what comes before the last point is its layer's name
  std::vector<std::int64_t> shape;
  std::uint64_t elements() const noexcept;
};
// The parameters gathered at a time: a transformer block, an embedding, or those after the blocks.
struct ModelGroup {
  std::string name;
  std::vector<ModelParameter> parameters;
  std::uint64_t elements() const noexcept;
};
// That of `parts` with the most elements; there is one. Each is counted once, where
// std::ranges::max_element counts the largest so far again beside every other.
template <class Part, class ElementsOf>
const Part& largest_of(const std::vector<Part>& parts, ElementsOf elements_of) {
  std::size_t largest = 0;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint64_t elements = elements_of(parts[i]);
    if (elements <= most) continue;
    most = elements;
    largest = i;
  }
  return parts[largest];
}
struct Model {
  std::string name;    // "t5-3b"; of a directory or file its path
  std::string source;  // "published shapes", "config.json (llama)", "4 safetensors headers", ...
  std::vector<ModelGroup> groups;

  struct Layer {
    std::string name;
    std::uint64_t elements = 0;
  };
  std::uint64_t elements() const noexcept;
  // The parameters of one name but for the last part; what frameworks call a module without its
  // children. Empty where there is none.
  Layer largest_layer() const;
  const ModelGroup& largest_group() const;
  // As an engine is given them: all bf16.
  std::vector<partition::GroupShape> shapes(DType dtype) const;
};

// Of a group of so many elements, as one of `ranks` has them.
double tiles_of(std::uint64_t elements, std::uint64_t tile_elements, std::uint32_t ranks);
// Why a rank with so many tiles is not planned, "": it is. A plan has a table of them, which is
// made anew for each of its variants.
std::string tiles_refusal(double tiles, std::uint64_t tile_elements);

// "gpt2, gpt2-medium, ...": for help.
std::string known_models();

// `word`: a known name; a directory with *.safetensors or config.json; a JSON file of shapes
// (docs/tools.md). Throws Error kNotFound, kInvalidArgument, kUnsupported naming what was looked
// for, and where.
Model model_of(const std::string& word);
}  // namespace headrace::tools
