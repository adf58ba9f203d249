// SPDX-License-Identifier: Apache-2.0
#include "bench/target.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "platform/block_devices.hpp"
#include "swap/io_buffer.hpp"

namespace headrace::tools {
namespace {
struct stat status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw Error(errno == ENOENT ? Code::kNotFound : Code::kIo,
                fmt::format("{}: {}; nothing was measured. Name a directory on the drive", path,
                            base::errno_text(errno)),
                errno);
  }
  return status;
}

std::uint64_t size_of(int fd, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return static_cast<std::uint64_t>(status.st_size);
  std::uint64_t bytes = 0;
  return ::ioctl(fd, BLKGETSIZE64, &bytes) == 0 ? bytes : 0;
}

// The probe would say so too, but of swapping.
void check_writable(const std::string& path) {
  if (::access(path.c_str(), W_OK | X_OK) == 0) return;
  throw Error(
      Code::kInvalidArgument,
      fmt::format("{} cannot be written to: {}; nothing was measured. Name a directory on the "
                  "drive that this user may write to",
                  path, base::errno_text(errno)),
      errno);
}

// A path where nothing can be written is a refusal, whatever stands in the way.
swap::PathProbe probed(const std::string& path, const Settings& settings) {
  try {
    return swap::probe_path(path, settings);
  } catch (const Error& error) {
    if (error.code() != Code::kIo) throw;
    throw Error(Code::kInvalidArgument, error.what(), error.sys_errno());
  }
}

// A read of the first page tells whether the file system means what it says.
bool reads_direct(int fd) {
  const swap::IoBuffer page = swap::make_io_buffer(kPageBytes);
  return ::pread(fd, page.get(), kPageBytes, 0) == static_cast<ssize_t>(kPageBytes);
}
}  // namespace

bool is_writable_target(const std::string& path) { return S_ISDIR(status_of(path).st_mode); }

std::optional<Room> room_of(const std::string& path) {
  struct statvfs space {};
  if (::statvfs(path.c_str(), &space) != 0) return std::nullopt;
  const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
  const std::uint64_t reserve = std::uint64_t{space.f_blocks} * space.f_frsize / 20;
  return Room{.free_bytes = free, .fits_bytes = free > reserve ? free - reserve : 0};
}

bool is_same_place(const std::string& a, const std::string& b) {
  const struct stat first = status_of(a), second = status_of(b);
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

std::vector<std::string> sharing(const std::vector<std::string>& paths, const std::string& path) {
  const dev_t device = status_of(path).st_dev;
  std::vector<std::string> together;
  for (const std::string& other : paths) {
    const struct stat status = status_of(other);
    if (S_ISDIR(status.st_mode) && status.st_dev == device) together.push_back(other);
  }
  return together;
}

void check_room(const std::string& path, std::uint64_t file_bytes, std::size_t files) {
  const std::optional<Room> room = room_of(path);
  if (!room || file_bytes * files <= room->fits_bytes) return;
  const std::uint64_t free = room->free_bytes, fits = room->fits_bytes / files;
  const std::string what =
      files == 1 ? "a file of " + base::format_bytes(file_bytes)
                 : fmt::format("{} files of {} on it", files, base::format_bytes(file_bytes));
  throw Error(Code::kNoSpace,
              fmt::format("{} has {} free, and {} would leave less than 5 % of the file system; "
                          "nothing was written. {}",
                          path, base::format_bytes(free), what,
                          fits >= 64 * base::kMiB
                              ? fmt::format("Give --size {}M or less",
                                            base::align_down(fits, 16 * base::kMiB) / base::kMiB)
                              : std::string("Free some space or name another directory")));
}

Target::Target(const std::string& path, std::uint64_t file_bytes, LogSink log) {
  facts_.path = path;
  facts_.model = platform::models_text({path});
  if (!is_writable_target(path)) {
    open_existing(path, file_bytes);
    return;
  }
  check_writable(path);
  Settings settings;
  settings.allow_memory_backed = true;  // a warning of the measurement's own
  probe_ = probed(path, settings);
  facts_.file_system = probe_.file_system;
  facts_.direct = probe_.direct;
  facts_.memory_backed = probe_.memory_backed;
  facts_.file_bytes = file_bytes;
  check_room(path, file_bytes);
  directory_ = std::make_unique<swap::RunDirectory>(probe_, swap::make_run_id(), std::move(log));
  file_ = std::make_unique<swap::SwapFile>(*directory_, probe_, "bench.data", file_bytes);
  fd_ = file_->fd();
  file_path_ = file_->path();
  pages_ = std::make_unique<PageMap>(file_bytes);
}

void Target::open_existing(const std::string& path, std::uint64_t file_bytes) {
  const struct stat status = status_of(path);
  if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
    throw Error(Code::kInvalidArgument,
                path +
                    " is neither a directory nor a block device; nothing was measured. Name a "
                    "directory on the drive");
  }
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
  existing_.reset(::open(path.c_str(), flags | O_DIRECT));
  facts_.direct = existing_ && reads_direct(existing_.get());
  if (!facts_.direct) existing_.reset(::open(path.c_str(), flags));
  if (!existing_) {
    throw Error(Code::kIo,
                fmt::format("{} cannot be opened for reading: {}; nothing was measured. Run as its "
                            "owner, or name a directory on the drive",
                            path, base::errno_text(errno)),
                errno);
  }
  fd_ = existing_.get();
  file_path_ = path;
  facts_.read_only = true;
  facts_.file_system = S_ISBLK(status.st_mode) ? "block device" : "file";
  facts_.file_bytes = base::align_down(std::min(file_bytes, size_of(fd_, status)), base::kHugePage);
  if (facts_.file_bytes == 0) {
    throw Error(Code::kInvalidArgument,
                path + " holds less than 2 MiB; nothing was measured. Name something larger");
  }
  pages_ = std::make_unique<PageMap>(facts_.file_bytes);
}
}  // namespace headrace::tools
