// SPDX-License-Identifier: Apache-2.0
#include "swap/swap_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/file_space.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "swap/io_buffer.hpp"
#include "swap/refusal.hpp"

namespace headrace::swap {
namespace {
// For file systems without fallocate. Returns 0 or an errno.
int write_zeros(int file, std::uint64_t size_bytes) {
  const std::size_t piece = base::kMiB;
  const IoBuffer zeros = make_io_buffer(piece);
  for (std::uint64_t at = 0; at < size_bytes;) {
    const std::size_t size = std::min<std::uint64_t>(piece, size_bytes - at);
    const ssize_t written = ::pwrite(file, zeros.get(), size, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    // A short write need not end where O_DIRECT can go on.
    const std::uint64_t pages =
        base::align_down(static_cast<std::uint64_t>(written), base::kIoAlignment);
    if (pages == 0) return ENOSPC;
    at += pages;
  }
  return 0;
}

int reserve(int file, std::uint64_t size_bytes) {
  const int error = base::reserve(file, size_bytes);
  return error == EOPNOTSUPP ? write_zeros(file, size_bytes) : error;
}

Error not_reserved(const std::string& path, std::uint64_t wanted, std::uint64_t free,
                   int sys_errno) {
  if (code_of(sys_errno) == Code::kNoSpace) {
    return Error(Code::kNoSpace,
                 "no room for " + path + ": " + base::errno_text(sys_errno) + ": it needs " +
                     base::format_bytes(wanted) + " (" + std::to_string(wanted) + " bytes), and " +
                     base::format_bytes(free) + " (" + std::to_string(free) +
                     " bytes) are free; nothing was written; " +
                     (sys_errno == EDQUOT ? what_helps(EDQUOT)
                                          : "free some space or name another nvme_path"),
                 sys_errno);
  }
  return Error(code_of(sys_errno),
               "could not reserve " + base::format_bytes(wanted) + " for " + path + ": " +
                   base::errno_text(sys_errno) + "; nothing was swapped; " + what_helps(sys_errno),
               sys_errno);
}
}  // namespace

void make_file(base::UniqueFd& file, int directory, const std::string& name,
               const std::string& path, std::uint64_t size_bytes, bool direct) {
  HEADRACE_CHECK(size_bytes > 0 && size_bytes % base::kIoAlignment == 0,
                 "a drive's file is made of whole pages");
  check_file_size_limit(path, size_bytes);
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | (direct ? O_DIRECT : 0);
  file.reset(TEMP_FAILURE_RETRY(::openat(directory, name.c_str(), flags, 0600)));
  const int error = errno;
  if (!file) throw not_reserved(path, size_bytes, base::free_bytes(directory).value_or(0), error);
}

void reserve_blocks(int file, const std::string& path, std::uint64_t size_bytes) {
  const std::uint64_t free = base::free_bytes(file).value_or(0);
  if (const int error = reserve(file, size_bytes); error != 0)
    throw not_reserved(path, size_bytes, free, error);
}

SwapFile::SwapFile(const RunDirectory& run, const PathProbe& path, const std::string& name,
                   std::uint64_t size_bytes)
    : DriveFile(run.path() + "/" + name, size_bytes),
      directory_fd_(run.fd()),
      name_(name),
      owner_pid_(static_cast<int>(::getpid())) {
  make_file(file_, directory_fd_, name_, path_, size_bytes, path.direct);
  try {
    reserve_blocks(file_.get(), path_, size_bytes);
  } catch (...) {
    ::unlinkat(directory_fd_, name_.c_str(), 0);
    throw;
  }
}

SwapFile::~SwapFile() {
  if (static_cast<int>(::getpid()) == owner_pid_) ::unlinkat(directory_fd_, name_.c_str(), 0);
}
}  // namespace headrace::swap
