// SPDX-License-Identifier: Apache-2.0
#include "swap/refusal.hpp"

#include <sys/resource.h>

#include <cerrno>

#include "base/units.hpp"

namespace headrace::swap {
Code code_of(int sys_errno) noexcept {
  switch (sys_errno) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Code::kNoSpace;
    case ETIMEDOUT:
      return Code::kIoStalled;
    default:
      return Code::kIo;
  }
}

std::string what_helps(int sys_errno, const std::string& place) {
  switch (sys_errno) {
    case ENOSPC:
      return "free some space (and inodes: df -i), or name another " + place;
    case EDQUOT:
      return "free some of this user's quota, or name another " + place;
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f unlimited)";
    case EACCES:
    case EPERM:
      return "name a directory that is this user's own, or that it may write to";
    case EAGAIN:
    case EBUSY:
      return "try again when other processes leave it alone";
    case EROFS:
      return "mount the file system for writing, or name another " + place +
             "; if it was writable before, the kernel met errors on it (dmesg)";
    case EMFILE:
      return "raise the limit on open files (ulimit -n), or close some";
    case ENFILE:
      return "the whole machine has too many files open: raise sysctl fs.file-max";
    case ENAMETOOLONG:
      return "name a shorter " + place;
    case ENOENT:
    case ENOTDIR:
      return "create the directory (mkdir -p), or name another " + place;
    case ENOMEM:
      return "free some memory";
    case EIO:
    case ENXIO:
    case ENODEV:
    case ETIMEDOUT:
    case ESTALE:
      return "look at the drive (dmesg, smartctl), or name another " + place;
    default:
      return "look at dmesg, or name another " + place;
  }
}

void check_file_size_limit(const std::string& path, std::uint64_t size_bytes,
                           const char* consequence) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      size_bytes <= limit.rlim_cur) {
    return;
  }
  throw Error(Code::kNoSpace,
              path + " needs a file of " + base::format_bytes(size_bytes) +
                  ", but this process may write files of at most " +
                  base::format_bytes(limit.rlim_cur) + "; " + consequence + "; " +
                  what_helps(EFBIG),
              EFBIG);
}
}  // namespace headrace::swap
