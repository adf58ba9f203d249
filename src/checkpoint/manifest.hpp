// SPDX-License-Identifier: Apache-2.0
// manifest.hpp: the manifest of a checkpoint: what was saved, and the checksums of every tensor.
//
// One line of JSON, then a line with its XXH3-128. It is written last: without it, there is no
// checkpoint.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/error.hpp"

namespace headrace::checkpoint {
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kTrainerStateName = "trainer_state.bin";

struct SavedParameter {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  bool frozen = false;
  std::uint64_t step = 0;
};
struct SavedTensor {
  std::string name;
  std::vector<std::string> checksums;  // of its chunks (chunk_sums.hpp), each 32 digits
};
struct SavedFile {
  std::string name;
  std::string header_checksum;
  std::vector<SavedTensor> tensors;  // in the order of their bytes
};
struct SavedTrainerState {
  std::uint64_t size_bytes = 0;
  std::string checksum;
};
struct Manifest {
  std::string rule, moments;               // headrace.optimizer, headrace.moments
  std::vector<SavedFile> weights, states;  // of different names
  std::vector<SavedParameter> parameters;  // of different names
  std::optional<SavedTrainerState> trainer_state;
};

// 32 digits of XXH3-128.
std::string checksum_of(std::string_view text);

std::string text_of(const Manifest& manifest);
// Throws kCorrupt naming the field that is missing or not what it has to be, kUnsupported for
// another version, kNotFound, kIo.
Manifest read_manifest(const std::string& directory);

// An error of load_checkpoint(), with its cause alone for who says otherwise what follows from it.
class Refusal : public Error {
 public:
  Refusal(Code code, const std::string& text, std::string cause)
      : Error(code, text), cause_(std::move(cause)) {}
  const std::string& cause() const noexcept { return cause_; }

 private:
  std::string cause_;
};
// Throw Refusal: before load_checkpoint() has changed anything, and kCorrupt at any time.
[[noreturn]] void refuse(const std::string& directory, const std::string& cause, Code code,
                         const std::string& help);
[[noreturn]] void refuse_damaged(const std::string& directory, const std::string& cause);
}  // namespace headrace::checkpoint
