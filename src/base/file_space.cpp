// SPDX-License-Identifier: Apache-2.0
#include "base/file_space.hpp"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <cerrno>

namespace headrace::base {
std::optional<std::uint64_t> free_bytes(int file) noexcept {
  struct statvfs space {};
  // Without blocks: a tmpfs without a limit, and file systems that count none.
  if (::fstatvfs(file, &space) != 0 || space.f_blocks == 0) return std::nullopt;
  return std::uint64_t{space.f_bavail} * space.f_frsize;
}

int reserve(int file, std::uint64_t size_bytes) noexcept {
  if (size_bytes == 0) return 0;
  if (size_bytes > free_bytes(file).value_or(size_bytes)) return ENOSPC;
  while (::fallocate(file, 0, 0, static_cast<off_t>(size_bytes)) != 0) {
    if (errno == ENOSYS) return EOPNOTSUPP;
    if (errno != EINTR) return errno;
  }
  return 0;
}
}  // namespace headrace::base
