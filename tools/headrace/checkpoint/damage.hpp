// SPDX-License-Identifier: Apache-2.0
// damage.hpp: compares every byte of a checkpoint with its manifest, and goes on after damage.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/facts.hpp"

namespace headrace::tools {
// Of a range of a file's bytes.
struct CheckpointDamage {
  std::string file, tensor;  // no tensor: of the file itself
  std::uint64_t begin_byte = 0, end_byte = 0;
  std::string what;
};
struct VerifiedCheckpoint {
  std::vector<CheckpointDamage> damage;
  std::vector<std::string> notes;    // what is odd and does no harm
  std::uint64_t verified_bytes = 0;  // of tensors and the trainer's state
};
// Called after at most 1 MiB; may throw, which ends the verification.
using CheckpointProgress = std::function<void(const std::string& file, std::uint64_t done_bytes)>;

// Holds 1 MiB beside the manifest.
VerifiedCheckpoint verify_checkpoint(OpenCheckpoint& open, const CheckpointProgress& progress);

std::string damage_line(const CheckpointDamage& damage);
}  // namespace headrace::tools
