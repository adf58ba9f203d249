// SPDX-License-Identifier: Apache-2.0
// files.hpp: the files of a checkpoint: whole transfers, and a folder that appears at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::checkpoint {
// Threads: one at a time. Every error names the path and what helps.
class File {
 public:
  static File create(const std::string& path);
  static File open(const std::string& path);  // kNotFound if it is not there
  void write(std::span<const std::byte> bytes, std::uint64_t at);
  // Throws kCorrupt where the file ends before.
  void read(std::span<std::byte> bytes, std::uint64_t at) const;
  std::uint64_t size_bytes() const;
  void sync();

 private:
  File(std::string path, base::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  base::UniqueFd fd_;
};

// "<directory>.tmp", locked while it is written. The destructor removes it unless it was finished.
class NewFolder {
 public:
  explicit NewFolder(std::string directory);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  const std::string& path() const noexcept { return path_; }
  void finish();

 private:
  std::string directory_, path_;
  base::UniqueFd fd_;
  bool finished_ = false;
};
}  // namespace headrace::checkpoint
