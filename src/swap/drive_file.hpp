// SPDX-License-Identifier: Apache-2.0
// drive_file.hpp: the file that a drive reads and writes: a run's scratch (swap_file.hpp), or a
// store's, which outlives the run (store_file.hpp).
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "base/unique_fd.hpp"

namespace headrace::swap {
class DriveFile {
 public:
  virtual ~DriveFile() = default;
  DriveFile(const DriveFile&) = delete;
  DriveFile& operator=(const DriveFile&) = delete;
  int fd() const noexcept { return file_.get(); }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 protected:
  DriveFile(std::string path, std::uint64_t size_bytes)
      : path_(std::move(path)), size_bytes_(size_bytes) {}
  std::string path_;
  std::uint64_t size_bytes_;
  base::UniqueFd file_;
};
}  // namespace headrace::swap
