// SPDX-License-Identifier: Apache-2.0
// swap_file.hpp: the directory of a run, its lock and manifest, and the swap files in it.
//
//   <nvme_path>/headrace-<uid>/<run id>/{lock, manifest.json, rank<r>.<drive>.swap}
//
// Directories 0700, files 0600, opened O_EXCL | O_NOFOLLOW | O_CLOEXEC, ownership checked. Whether
// a run lives is the kernel's flock on `lock` alone. docs/swap_file.md describes the format.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "headrace/log.hpp"
#include "headrace/settings.hpp"

namespace headrace::swap {
// What an nvme_path is good for, found by trying. Throws headrace::Error before anything is left
// behind:
//   kNotFound     missing, or not a directory
//   kIo           not writable (errno)
//   kUnsupported  tmpfs/ramfs without allow_memory_backed; no O_DIRECT with direct = kRequire
struct PathProbe {
  std::string path = {};         // canonical
  std::string file_system = {};  // "ext4", "tmpfs", ...
  bool direct = false;           // O_DIRECT moved real data, aligned to `alignment_bytes`
  std::uint32_t alignment_bytes = 4096;
  bool memory_backed = false;
  std::uint64_t free_bytes = 0;  // for this user
};
PathProbe probe_path(const std::string& path, const Settings& settings);

// A run's directory under one nvme_path. Making one first reclaims (removes) directories of dead
// runs of this user (dead_runs.hpp): those whose lock is free and whose manifest is ours. A live
// run's is never touched.
class RunDirectory {
 public:
  RunDirectory(const PathProbe& path, const std::string& run_id, LogSink log);
  ~RunDirectory();  // removes the directory and what is in it, or warns; never throws
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const noexcept { return path_; }
  int fd() const noexcept { return directory_.get(); }

 private:
  std::string path_;
  LogSink log_;
  base::UniqueFd user_directory_, directory_, lock_;
  int owner_pid_ = 0;  // a forked child removes nothing and drops the lock
};

// One file of fixed size whose blocks are all reserved (fallocate; where that is not to be had:
// written with zeros). Throws kNoSpace with wanted and free bytes; then the file is gone again.
class SwapFile {
 public:
  SwapFile(const RunDirectory& run, const PathProbe& path, const std::string& name,
           std::uint64_t size_bytes);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;
  int fd() const noexcept { return file_.get(); }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  int directory_fd_;
  std::string name_, path_;
  std::uint64_t size_bytes_;
  int owner_pid_ = 0;  // a forked child removes nothing
  base::UniqueFd file_;
};

// A fresh id: time, host boot id and random bits, 32 hex digits.
std::string make_run_id();
}  // namespace headrace::swap
