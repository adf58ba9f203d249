// SPDX-License-Identifier: Apache-2.0
// temporary_directory.hpp: a directory for a test, on the file system of its working directory (the
// build folder: a real one, with O_DIRECT), removed at the end.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace headrace::testing {
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }
  std::string string() const { return path_.string(); }
  // Folders in it that stand for drives; of one, itself.
  std::vector<std::string> drives(std::size_t count) const;
  // Files and directories of runs in it, but for the directory of the user.
  std::size_t entries() const;

 private:
  std::filesystem::path path_;
};
}  // namespace headrace::testing
