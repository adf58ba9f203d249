// SPDX-License-Identifier: Apache-2.0
#include "base/whole_transfers.hpp"

#include <unistd.h>

#include <cerrno>

namespace headrace::base {
Moved read_at(int file, std::uint64_t offset_bytes, std::span<std::byte> out) noexcept {
  Moved moved;
  while (moved.size_bytes < out.size()) {
    const std::span<std::byte> left = out.subspan(moved.size_bytes);
    const ssize_t got = TEMP_FAILURE_RETRY(::pread(
        file, left.data(), left.size(), static_cast<off_t>(offset_bytes + moved.size_bytes)));
    if (got < 0) moved.error = errno;
    if (got <= 0) break;
    moved.size_bytes += static_cast<std::size_t>(got);
  }
  return moved;
}

Moved write_at(int file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) noexcept {
  Moved moved;
  while (moved.size_bytes < bytes.size()) {
    const std::span<const std::byte> left = bytes.subspan(moved.size_bytes);
    const ssize_t done = TEMP_FAILURE_RETRY(::pwrite(
        file, left.data(), left.size(), static_cast<off_t>(offset_bytes + moved.size_bytes)));
    if (done <= 0) {
      moved.error = done < 0 ? errno : ENOSPC;
      break;
    }
    moved.size_bytes += static_cast<std::size_t>(done);
  }
  return moved;
}
}  // namespace headrace::base
