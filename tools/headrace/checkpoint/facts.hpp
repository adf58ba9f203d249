// SPDX-License-Identifier: Apache-2.0
// facts.hpp: what a checkpoint holds, by its manifest and the lengths of its files.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/layout.hpp"
#include "checkpoint/manifest.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// The manifest, and the places that follow from it.
struct OpenCheckpoint {
  std::string folder;
  checkpoint::Manifest manifest;
  checkpoint::Layout layout;
};
// Throws checkpoint::Refusal and headrace::Error, as load_checkpoint() does.
OpenCheckpoint open_checkpoint(const std::string& folder);

struct FileFacts {
  std::string name;
  std::uint64_t size_bytes = 0;              // by the manifest
  std::optional<std::uint64_t> found_bytes;  // nullopt: it is not there
  std::uint32_t tensors = 0;
  bool whole_length() const { return found_bytes == size_bytes; }
};
struct Counted {
  std::uint64_t parameters = 0, elements = 0;
};
struct CheckpointFacts {
  Counted all, trained, frozen;
  std::map<std::string, Counted> dtypes;
  std::optional<std::uint64_t> least_step, most_step;  // of trained parameters
  std::uint64_t weight_bytes = 0, state_bytes = 0;
  std::vector<FileFacts> files;  // the trainer's state last
  std::uint64_t found_bytes() const;
  bool whole_lengths() const;
};
CheckpointFacts facts_of(const OpenCheckpoint& open);

std::string facts_text(const OpenCheckpoint& open, const CheckpointFacts& facts);
Json facts_json(const OpenCheckpoint& open, const CheckpointFacts& facts);
// A line for each tensor, in the order of the files.
std::string tensors_text(const OpenCheckpoint& open);
Json tensors_json(const OpenCheckpoint& open);

// "step 3", or "steps 2 to 3"; "no step" if nothing is trained.
std::string steps_text(const CheckpointFacts& facts);
}  // namespace headrace::tools
