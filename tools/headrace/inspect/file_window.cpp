// SPDX-License-Identifier: Apache-2.0
#include "inspect/file_window.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/error_text.hpp"
#include "base/whole_transfers.hpp"

namespace headrace::tools {
namespace {
Error cannot_read(const std::string& path, int error) {
  return Error(Code::kIo,
               path + " cannot be read: " + base::errno_text(error) +
                   "; what it holds is not known. See what the kernel says of its drive (dmesg)",
               error);
}
}  // namespace

Error cannot_open(const std::string& path, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  return Error(missing        ? Code::kNotFound
               : error == EIO ? Code::kIo
                              : Code::kInvalidArgument,
               path + " cannot be read: " + base::errno_text(error) +
                   "; nothing was checked. Name a swap file, or a folder with some, that this user "
                   "may read",
               error);
}

FileWindow::FileWindow(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
  struct stat status {};
  if (!fd_ || ::fstat(fd_.get(), &status) != 0) throw cannot_open(path, errno);
  if (!S_ISREG(status.st_mode))
    throw Error(
        Code::kInvalidArgument,
        path +
            " is not a regular file; nothing was checked. Name a swap file, or a folder with "
            "some");
  size_ = static_cast<std::uint64_t>(status.st_size);
  bytes_.resize(kBytes);
}

void FileWindow::fill(std::uint64_t offset, std::uint64_t least) {
  begin_ = offset;
  filled_ = 0;
  const std::uint64_t wanted = std::min<std::uint64_t>(bytes_.size(), size_ - offset);
  const base::Moved moved = base::read_at(fd_.get(), offset, std::span(bytes_).first(wanted));
  if (moved.error != 0) throw cannot_read(path_, moved.error);
  filled_ = moved.size_bytes;
  // Pages that were read need not push the machine's other files out of memory.
  ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(filled_),
                  POSIX_FADV_DONTNEED);
  if (filled_ < least) {
    throw Error(Code::kIo,
                fmt::format("{} ended at {} while it was read; it was truncated; the rest is "
                            "not known. Look again when its run has ended",
                            path_, offset + filled_));
  }
}
}  // namespace headrace::tools
