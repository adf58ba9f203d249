// SPDX-License-Identifier: Apache-2.0
// manifest.hpp: the manifest of a checkpoint: what was saved, and the hash of every tensor.
//
// One line of JSON, then a line with its XXH3-128. It is written last: without it, there is no
// checkpoint.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/error.hpp"

namespace headrace::checkpoint {
inline constexpr std::array kFiles = {"model.safetensors", "optimizer.safetensors"};

struct SavedParameter {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  bool frozen = false;
  std::uint64_t step = 0;
};
struct SavedTensor {
  std::string name, hash;
};
struct SavedFile {
  std::string header_hash;
  std::vector<SavedTensor> tensors;  // in the order of their bytes
};
struct Manifest {
  std::string rule, moments;  // headrace.optimizer, headrace.moments
  std::array<SavedFile, kFiles.size()> files;
  std::vector<SavedParameter> parameters;  // of different names
};

// 32 digits of XXH3-128.
std::string hash_of(std::string_view text);

void write_manifest(const Manifest& manifest, const std::string& folder);
// Throws kCorrupt naming the field that is missing or not what it has to be, kUnsupported for
// another version, kNotFound, kIo.
Manifest read_manifest(const std::string& directory);

// Throw the errors of load_checkpoint() before it has changed anything.
[[noreturn]] void refuse(const std::string& directory, const std::string& cause, Code code,
                         const std::string& help);
[[noreturn]] void refuse_damaged(const std::string& directory, const std::string& cause);
}  // namespace headrace::checkpoint
