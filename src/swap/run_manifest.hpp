// SPDX-License-Identifier: Apache-2.0
// run_manifest.hpp: manifest.json of a run's directory, which shows that the directory is ours.
#pragma once
#include <optional>
#include <string>

namespace headrace::swap {
// Writes it into `directory_fd`. Throws Error kIo or kNoSpace.
void write_manifest(int directory_fd, const std::string& directory_path, const std::string& run_id);
// The pid in the manifest, if `directory_fd` holds the manifest of run `run_id`, of this user, in a
// version that this code knows; otherwise no value.
std::optional<int> pid_of_our_manifest(int directory_fd, const std::string& run_id) noexcept;
}  // namespace headrace::swap
