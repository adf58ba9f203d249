// SPDX-License-Identifier: Apache-2.0
#include "swap/buffered_window.hpp"

#include <fcntl.h>

#include <cerrno>

#include "base/units.hpp"

namespace headrace::swap {
namespace {
constexpr std::uint64_t kDirtyBytes = 64 * base::kMiB;

int sync_range(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes,
               unsigned flags) noexcept {
  const int result = ::sync_file_range(fd, static_cast<off_t>(offset_bytes),
                                       static_cast<off_t>(size_bytes), flags);
  // Not every file system has it; then the kernel writes back when it likes.
  return result == 0 || errno == ENOSYS || errno == EINVAL || errno == ESPIPE ? 0 : errno;
}
}  // namespace

BufferedWindow::BufferedWindow(int fd) noexcept
    : fd_(fd), direct_((::fcntl(fd, F_GETFL) & O_DIRECT) != 0) {}

int BufferedWindow::wrote(std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept {
  if (direct_ || size_bytes == 0) return 0;
  int error = sync_range(fd_, offset_bytes, size_bytes, SYNC_FILE_RANGE_WRITE);
  const auto make_room = [&] {
    if (const int failed = write_back_oldest(); failed != 0) error = failed;
  };
  if (count_ == dirty_.size()) make_room();
  dirty_[(first_ + count_++) % dirty_.size()] = {offset_bytes, size_bytes};
  dirty_bytes_ += size_bytes;
  while (dirty_bytes_ > kDirtyBytes) make_room();
  return error;
}

void BufferedWindow::read(std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept {
  if (direct_ || size_bytes == 0) return;
  ::posix_fadvise(fd_, static_cast<off_t>(offset_bytes), static_cast<off_t>(size_bytes),
                  POSIX_FADV_DONTNEED);
}

int BufferedWindow::write_back_oldest() noexcept {
  const Range range = dirty_[first_];
  first_ = (first_ + 1) % dirty_.size();
  --count_;
  dirty_bytes_ -= range.size_bytes;
  const int error =
      sync_range(fd_, range.offset_bytes, range.size_bytes,
                 SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  read(range.offset_bytes, range.size_bytes);
  return error;
}
}  // namespace headrace::swap
