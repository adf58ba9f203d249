// SPDX-License-Identifier: Apache-2.0
// swap_file.hpp: the directory of a run, its lock and manifest, and its swap files. They are
// scratch: they are removed with the run, and no other run resumes from them.
//
//   <nvme_path>/headrace-<uid>/<run id>/{lock, manifest.json, rank<r>.<drive>.swap}
//
// Directories have mode 0700, files 0600. Files are opened with O_EXCL | O_NOFOLLOW | O_CLOEXEC,
// and their owner is checked. Only the kernel's flock on `lock` shows whether a run is alive.
// docs/swap_file.md describes the format.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "headrace/log.hpp"
#include "headrace/settings.hpp"
#include "swap/drive_file.hpp"

namespace headrace::swap {
// The properties of an nvme_path, found by trying. Throws headrace::Error and leaves nothing there:
//   kNotFound     missing, or not a directory
//   kIo           not writable (errno)
//   kUnsupported  tmpfs/ramfs without allow_memory_backed; no O_DIRECT with direct = kRequire
struct PathProbe {
  std::string path = {};         // canonical
  std::string file_system = {};  // "ext4", "tmpfs", ...
  bool direct = false;           // O_DIRECT moved real data, aligned to `alignment_bytes`
  std::uint32_t alignment_bytes = 4096;
  bool memory_backed = false;
  std::uint64_t free_bytes = 0;  // available to this user
  // Of the directory: two paths may lead to one.
  std::uint64_t device = 0, inode = 0;
};
PathProbe probe_path(const std::string& path, const Settings& settings);

// A run's directory under one nvme_path. The constructor first removes the directories of this
// user's dead runs (dead_runs.hpp): those whose lock is free and whose manifest is ours. It never
// touches that of a live run.
class RunDirectory {
 public:
  RunDirectory(const PathProbe& path, const std::string& run_id, LogSink log);
  ~RunDirectory();  // removes the directory with its contents, or warns; never throws
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const noexcept { return path_; }
  int fd() const noexcept { return directory_.get(); }

 private:
  std::string path_;
  LogSink log_;
  base::UniqueFd user_directory_, directory_, lock_;
  int owner_pid_ = 0;  // a forked child removes nothing and releases the lock
};

// One file of fixed size, with all its blocks reserved (by fallocate, or by writing zeros without
// it). If this throws kNoSpace, with wanted and free bytes, the file is gone again.
class SwapFile : public DriveFile {
 public:
  SwapFile(const RunDirectory& run, const PathProbe& path, const std::string& name,
           std::uint64_t size_bytes);
  ~SwapFile() override;

 private:
  int directory_fd_;
  std::string name_;
  int owner_pid_ = 0;  // a forked child removes nothing
};

// The two halves of SwapFile's constructor, which throw as it does. `path`: for messages.
// Makes an empty file, which must not be there, to be given this size.
void make_file(base::UniqueFd& file, int directory, const std::string& name,
               const std::string& path, std::uint64_t size_bytes, bool direct);
// Reserves all its blocks.
void reserve_blocks(int file, const std::string& path, std::uint64_t size_bytes);

// A new id: time, host boot id and random bits, as 32 hex digits.
std::string make_run_id();
}  // namespace headrace::swap
