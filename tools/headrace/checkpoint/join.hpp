// SPDX-License-Identifier: Apache-2.0
// join.hpp: the tensors of a checkpoint in files of another size.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace headrace::tools {
struct JoinOptions {
  std::string from, to;
  std::uint64_t file_bytes = std::numeric_limits<std::uint64_t>::max();  // of tensors in a file
};

struct Joined {
  std::string folder;  // that was read
  std::uint64_t tensors = 0, files_before = 0, files = 0, written_bytes = 0;
  std::vector<std::string> left_out;  // files that are not the checkpoint's
};

// Writes the new folder options.to, complete or not at all, with the values and checksums of the
// checkpoint options.from. Compares every byte with its checksum. Holds some 25 MiB beside the
// manifests and the trainer's state.
// Throws command_line::Fault for options that contradict what is there, and headrace::Error.
Joined join_checkpoint(const JoinOptions& options);
}  // namespace headrace::tools
