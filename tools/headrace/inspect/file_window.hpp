// SPDX-License-Identifier: Apache-2.0
// file_window.hpp: a file that is only read, through a window that follows the reads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "headrace/error.hpp"

namespace headrace::tools {
// What cannot be opened is a refusal, unless it is the drive that fails.
Error cannot_open(const std::string& path, int error);

class FileWindow {
 public:
  static constexpr std::uint64_t kBytes = std::uint64_t{4} << 20;
  // Throws kNotFound, kInvalidArgument, kIo.
  explicit FileWindow(const std::string& path);
  std::uint64_t size_bytes() const noexcept { return size_; }
  // `size` <= kBytes, inside the file. Holds until the next call. Throws kIo.
  std::span<const std::byte> at(std::uint64_t offset, std::uint64_t size) {
    if (offset < begin_ || offset + size > begin_ + filled_) fill(offset, size);
    return std::span(bytes_).subspan(offset - begin_, size);
  }
  // What is read from now on is read anew, where another process may have written.
  void forget() noexcept { filled_ = 0; }

 private:
  void fill(std::uint64_t offset, std::uint64_t least);

  std::string path_;
  base::UniqueFd fd_;
  std::uint64_t size_ = 0, begin_ = 0, filled_ = 0;
  std::vector<std::byte> bytes_;
};
}  // namespace headrace::tools
