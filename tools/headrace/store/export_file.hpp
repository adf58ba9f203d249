// SPDX-License-Identifier: Apache-2.0
// export_file.hpp: a file that is there whole or not at all, and takes no other file's place.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::tools {
// Written as "<path>.headrace-tmp", locked. The destructor removes it unless it was finished. One
// that a killed export left is written anew.
class ExportFile {
 public:
  // Throws kInvalidArgument if there is something at the path, or no regular file at the temporary
  // one, kWrongState if another export writes to it, kNoSpace if the drive has no room for the
  // size, and kIo.
  ExportFile(std::string path, std::uint64_t size_bytes);
  ~ExportFile();
  ExportFile(const ExportFile&) = delete;
  ExportFile& operator=(const ExportFile&) = delete;
  void write(std::span<const std::byte> bytes, std::uint64_t at);
  // Syncs it and gives it its name.
  void finish();

 private:
  bool is_temporary(const struct stat& open) const;
  void open_locked();
  void reserve(std::uint64_t size_bytes) const;
  void give_name();
  void refuse_existing() const;
  void refuse_no_file(unsigned mode) const;

  std::string path_, temporary_;
  base::UniqueFd fd_;
  bool finished_ = false;
};
}  // namespace headrace::tools
