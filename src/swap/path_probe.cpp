// SPDX-License-Identifier: Apache-2.0
// Probes an nvme_path: moves real data with O_DIRECT before it relies on it.
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>

#include "base/error_text.hpp"
#include "base/file_space.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "swap/io_buffer.hpp"
#include "swap/refusal.hpp"
#include "swap/swap_file.hpp"

namespace headrace::swap {
namespace {
constexpr std::uint32_t kTrialBytes = 64 * 1024;

struct FileSystem {
  std::uint32_t magic;
  const char* name;
  bool memory_backed;
};
constexpr FileSystem kFileSystems[] = {
    {EXT4_SUPER_MAGIC, "ext4", false},     {XFS_SUPER_MAGIC, "xfs", false},
    {BTRFS_SUPER_MAGIC, "btrfs", false},   {TMPFS_MAGIC, "tmpfs", true},
    {RAMFS_MAGIC, "ramfs", true},          {OVERLAYFS_SUPER_MAGIC, "overlay", false},
    {NFS_SUPER_MAGIC, "nfs", false},       {F2FS_SUPER_MAGIC, "f2fs", false},
    {FUSE_SUPER_MAGIC, "fuse", false},     {V9FS_MAGIC, "9p", false},
    {CIFS_SUPER_MAGIC, "cifs", false},     {SMB2_SUPER_MAGIC, "smb2", false},
    {MSDOS_SUPER_MAGIC, "vfat", false},    {EXFAT_SUPER_MAGIC, "exfat", false},
    {CEPH_SUPER_MAGIC, "ceph", false},     {SQUASHFS_MAGIC, "squashfs", false},
    {ISOFS_SUPER_MAGIC, "iso9660", false}, {0x2fc12fc1u, "zfs", false},
    {0x0bd00bd0u, "lustre", false},        {0x47504653u, "gpfs", false},
    {0x19830326u, "beegfs", false},        {0xca451a4eu, "bcachefs", false},
};

// The directory is there, and no file can be made in it: /proc and its like.
bool takes_no_files(const std::string& path, int sys_errno) {
  return sys_errno == ENOENT && ::access(path.c_str(), F_OK) == 0;
}

Error not_usable(const std::string& path, int sys_errno) {
  if (takes_no_files(path, sys_errno)) {
    return Error(Code::kUnsupported,
                 "nvme_path '" + path +
                     "' is on a file system that takes no files: " + base::errno_text(sys_errno) +
                     "; nothing can be swapped there; name a directory on a drive",
                 sys_errno);
  }
  const bool full = code_of(sys_errno) == Code::kNoSpace;
  return Error(code_of(sys_errno),
               "nvme_path '" + path + "' " +
                   (full ? "has no room for a probe of 64 KiB: " : "cannot be written to: ") +
                   base::errno_text(sys_errno) + "; nothing can be swapped there; " +
                   what_helps(sys_errno),
               sys_errno);
}

std::string canonical(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (real != nullptr) return real.get();
  const int error = errno;
  const bool missing = error == ENOENT || error == ENOTDIR;
  throw Error(missing ? Code::kNotFound : Code::kIo,
              "nvme_path '" + path + "' " + (missing ? "does not exist" : "cannot be reached") +
                  ": " + base::errno_text(error) + "; nothing can be swapped there; " +
                  what_helps(error),
              error);
}

base::UniqueFd open_directory(const std::string& path) {
  base::UniqueFd directory(
      TEMP_FAILURE_RETRY(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (directory) return directory;
  const int error = errno;
  if (error == ENOTDIR) {
    throw Error(Code::kNotFound,
                "nvme_path '" + path +
                    "' is not a directory; swap files need one; name a directory on a drive",
                error);
  }
  throw not_usable(path, error);
}

void name_file_system(int directory, PathProbe& probe) {
  struct statfs status {};
  if (::fstatfs(directory, &status) != 0) throw not_usable(probe.path, errno);
  const auto magic = static_cast<std::uint32_t>(status.f_type);
  const auto* const known =
      std::find_if(std::begin(kFileSystems), std::end(kFileSystems),
                   [magic](const FileSystem& one) { return one.magic == magic; });
  if (known != std::end(kFileSystems)) {
    probe.file_system = known->name;
    probe.memory_backed = known->memory_backed;
  } else {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "file system type 0x%08x", magic);
    probe.file_system = text.data();
  }
  struct stat file {};
  if (::fstat(directory, &file) != 0) throw not_usable(probe.path, errno);
  probe.device = file.st_dev;
  probe.inode = file.st_ino;
  // Where it does not say, the reservation finds out; large, and sums of it still fit.
  probe.free_bytes = base::free_bytes(directory).value_or(std::uint64_t{1} << 60);
}

// A file that is gone when it is closed.
base::UniqueFd open_nameless(int directory, int flags) {
  base::UniqueFd file(
      TEMP_FAILURE_RETRY(::openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600)));
  if (file || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  const std::string name = ".headrace-probe-" + make_run_id();
  file = base::UniqueFd(TEMP_FAILURE_RETRY(::openat(
      directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | flags, 0600)));
  const int error = errno;
  if (file) ::unlinkat(directory, name.c_str(), 0);
  errno = error;
  return file;
}

// The alignment that statx reports: 0 for "no direct I/O", nothing if it reports none.
std::optional<std::uint32_t> reported_alignment(int file) {
  struct statx status {};
  if (::syscall(SYS_statx, file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0)
    return std::nullopt;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return std::nullopt;
  return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
}

// Moves random bytes out and back, memory, offset and size aligned to just `alignment`. Returns 0,
// an errno, or EIO if other bytes came back.
int move_data(int file, std::uint32_t alignment) {
  const IoBuffer out = make_io_buffer(kTrialBytes * 2);
  const IoBuffer back = make_io_buffer(kTrialBytes * 2);
  std::byte* const from = out.get() + alignment;
  std::byte* const to = back.get() + alignment;
  const std::size_t size = std::max<std::size_t>(alignment, kTrialBytes / 2);
  for (std::size_t at = 0; at < size; at += 256) {
    if (::getrandom(from + at, std::min<std::size_t>(256, size - at), 0) < 0) return errno;
  }
  const ssize_t written = TEMP_FAILURE_RETRY(::pwrite(file, from, size, alignment));
  if (written < 0) return errno;
  const ssize_t got = TEMP_FAILURE_RETRY(::pread(file, to, size, alignment));
  if (got < 0) return errno;
  const bool same =
      written == static_cast<ssize_t>(size) && got == written && std::memcmp(from, to, size) == 0;
  return same ? 0 : EIO;
}

// True if odd memory is taken too: then the file system copies through its cache, whatever the open
// flag said.
bool copies_silently(int file) {
  const IoBuffer memory = make_io_buffer(2 * base::kIoAlignment);
  return ::pread(file, memory.get() + 1, base::kIoAlignment, 0) == base::kIoAlignment;
}

// Finds out whether O_DIRECT really works on this open file, and at which alignment.
bool probe_direct(int file, PathProbe& probe) {
  const std::optional<std::uint32_t> reported = reported_alignment(file);
  if (reported.has_value()) {
    if (*reported == 0 || *reported > base::kIoAlignment) return false;
    probe.alignment_bytes = std::max<std::uint32_t>(*reported, 512);
    return move_data(file, probe.alignment_bytes) == 0;
  }
  for (const std::uint32_t alignment : {std::uint32_t{512}, std::uint32_t{4096}}) {
    if (move_data(file, alignment) != 0) continue;
    probe.alignment_bytes = alignment;
    // NFS takes any memory and still goes past the cache.
    return probe.file_system == "nfs" || !copies_silently(file);
  }
  return false;
}

void refuse_memory(const PathProbe& probe) {
  throw Error(Code::kUnsupported,
              "nvme_path '" + probe.path + "' is on " + probe.file_system +
                  ", a file system in memory; the swapped state would stay in memory, which it is "
                  "meant to free; "
                  "name a directory on a drive, or set headrace.allow_memory_backed=true");
}
}  // namespace

PathProbe probe_path(const std::string& path, const Settings& settings) {
  PathProbe probe;
  probe.path = canonical(path);
  const base::UniqueFd directory = open_directory(probe.path);
  name_file_system(directory.get(), probe);
  if (probe.memory_backed && !settings.allow_memory_backed) refuse_memory(probe);
  check_file_size_limit("nvme_path '" + probe.path + "'", kTrialBytes);

  base::UniqueFd file;
  if (!probe.memory_backed) {
    file = open_nameless(directory.get(), O_DIRECT);
    probe.direct = file && probe_direct(file.get(), probe);
  }
  if (!probe.direct) {
    probe.alignment_bytes = 4096;
    file = open_nameless(directory.get(), 0);
    if (!file) throw not_usable(probe.path, errno);
    if (const int error = move_data(file.get(), 4096); error != 0)
      throw not_usable(probe.path, error);
  }
  if (!probe.direct && settings.direct == DirectIo::kRequire) {
    throw Error(Code::kUnsupported,
                "nvme_path '" + probe.path + "' is on " + probe.file_system +
                    ", which has no O_DIRECT; transfers would go through the page cache, and "
                    "headrace.direct is \"require\"; name a directory on ext4 or xfs, or set "
                    "headrace.direct "
                    "to \"auto\"");
  }
  return probe;
}
}  // namespace headrace::swap
