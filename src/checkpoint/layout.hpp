// SPDX-License-Identifier: Apache-2.0
// layout.hpp: the place of each tensor in the files of a checkpoint, which follows from its
// manifest.
//
//   model*.safetensors      each weight, by its parameter's name
//   optimizer*.safetensors  for each trained parameter: master.NAME, exp_avg.NAME and
//                           exp_avg_sq.NAME as far as the rule keeps them, and step.NAME
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "headrace/engine.hpp"

namespace headrace::checkpoint {
// One of several kinds of values of a parameter: a content, or its step count.
using Kept = std::optional<Content>;

struct PlacedTensor {
  std::uint32_t parameter = 0;  // index into Manifest::parameters
  Kept kept;
  std::uint32_t file = 0;  // index into Layout::files
  std::uint64_t at = 0, size_bytes = 0;
};
struct PlacedFile {
  std::string name, header;
  std::uint32_t first_tensor = 0, tensors = 0;
  std::uint64_t size_bytes = 0;
};
struct Layout {
  std::vector<PlacedFile> files;  // those of Manifest::weights, then those of Manifest::states
  std::vector<PlacedTensor> tensors;
  std::vector<std::array<std::uint32_t, 4>> by_content;  // of tensors, by parameter and content

  std::uint32_t tensor_of(std::uint32_t parameter, Content content) const {
    return by_content[parameter][static_cast<std::size_t>(content)];
  }
};

// What an engine's rule keeps of a trained parameter beside its weight, in the order of its bytes.
std::vector<Kept> states_of(OptimizerRule rule);
std::optional<OptimizerRule> rule_named(const std::string& name);
std::string tensor_name(const Kept& kept, const std::string& parameter);
TensorHeader header_of(const SavedParameter& parameter, const Kept& kept);
std::uint64_t elements_of(const SavedParameter& parameter);

// Gives each tensor to a file: the next one begins where `file_bytes` would be passed. The
// checksums stay empty.
void assign_files(Manifest& manifest, OptimizerRule rule, std::uint64_t file_bytes);
// Throws kCorrupt, as load_checkpoint() of `directory`, if a tensor is of no parameter, or one is
// missing that the rule keeps, or has another number of checksums.
Layout layout_of(const Manifest& manifest, const std::string& directory);
// The file that says in which file each tensor is, as Hugging Face's libraries read it. Empty for
// one file.
std::string index_of(const Manifest& manifest, const Layout& layout, bool weights);
const char* index_name(bool weights);

// By index into the layout.
SavedFile& saved_file(Manifest& manifest, std::uint32_t file);
SavedTensor& saved_tensor(Manifest& manifest, const Layout& layout, std::uint32_t tensor);
}  // namespace headrace::checkpoint
