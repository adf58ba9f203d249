// SPDX-License-Identifier: Apache-2.0
// The directory of a run: made under a temporary name with its lock held, found dead by that lock
// alone (dead_runs.hpp).
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string_view>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "swap/dead_runs.hpp"
#include "swap/refusal.hpp"
#include "swap/run_lock.hpp"
#include "swap/run_manifest.hpp"
#include "swap/swap_file.hpp"
#include "swap/user_directory.hpp"

namespace headrace::swap {
namespace {
using base::UniqueFd;

// The run's directory under its temporary name, with the lock taken and the manifest written.
UniqueFd make_run(int user_directory, const std::string& temporary, const std::string& path,
                  const std::string& run_id, UniqueFd& lock) {
  if (::mkdirat(user_directory, temporary.c_str(), 0700) != 0)
    fail_at("could not make", path, errno);
  int error = 0;
  UniqueFd directory = open_own_directory(user_directory, temporary, error);
  if (error != 0) fail_at("could not use", path, error);
  lock.reset(
      ::openat(directory.get(), "lock", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) fail_at("could not make", path + "/lock", errno);
  if (lock_exclusive(lock.get(), path + "/lock", kLockTries) != LockOutcome::kTaken) {
    fail_at("could not lock", path + "/lock", EWOULDBLOCK);
  }
  write_manifest(directory.get(), path, run_id);
  if (::renameat(user_directory, temporary.c_str(), user_directory, run_id.c_str()) != 0) {
    fail_at("could not rename", path, errno);
  }
  return directory;
}

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Logs facts about the file system that are no fault but worth knowing.
void remark_on_file_system(const PathProbe& path, const LogSink& log) {
  const std::string place = path.path + " is on " + path.file_system;
  if (is_one_of(path.file_system,
                {"nfs", "cifs", "smb2", "ceph", "lustre", "gpfs", "beegfs", "9p"})) {
    log(LogLevel::kWarning,
        place +
            ", a file system that may lie on another machine; every step moves the swapped state "
            "there and back; name a directory on a drive of this machine for full speed");
  }
  if (is_one_of(path.file_system, {"btrfs", "zfs", "bcachefs"})) {
    log(LogLevel::kInfo,
        place +
            ", which writes in other places than before, so what is reserved may still run out; "
            "leave room free, or name a directory on ext4 or xfs");
  }
  if (path.memory_backed) {
    log(LogLevel::kInfo,
        place + ": what is swapped stays in memory, as headrace.allow_memory_backed allows");
  } else if (!path.direct) {
    log(LogLevel::kWarning,
        place +
            ", which has no O_DIRECT; transfers go through the page cache, which costs CPU and "
            "memory; name a directory on ext4 or xfs for full speed");
  }
}
}  // namespace

RunDirectory::RunDirectory(const PathProbe& path, const std::string& run_id, LogSink log)
    : log_(base::sink_or_stderr(std::move(log))), owner_pid_(static_cast<int>(::getpid())) {
  const std::string user_name = user_directory_name();
  const std::string user_path = path.path + "/" + user_name;
  path_ = user_path + "/" + run_id;
  const UniqueFd parent(
      TEMP_FAILURE_RETRY(::open(path.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!parent) fail_at("could not open", path.path, errno);
  user_directory_ = open_user_directory(parent.get(), user_name, user_path);

  const std::string temporary = kBeingMade + run_id;
  close_in_forked_child(lock_);
  try {
    reclaim_dead_runs(user_directory_.get(), user_path, log_);
    directory_ = make_run(user_directory_.get(), temporary, path_, run_id, lock_);
  } catch (...) {
    forget_in_forked_child(lock_);
    int error = 0;
    const UniqueFd half = open_own_directory(user_directory_.get(), temporary, error);
    if (half) {
      remove_run(user_directory_.get(), temporary, half.get());
    } else {
      ::unlinkat(user_directory_.get(), temporary.c_str(), AT_REMOVEDIR);
    }
    remove_if_empty(user_directory_.get(), user_name);
    throw;
  }
  // Said aloud: a child forked meanwhile shares the descriptor.
  ::flock(user_directory_.get(), LOCK_UN);
  remark_on_file_system(path, log_);
}

RunDirectory::~RunDirectory() {
  if (static_cast<int>(::getpid()) != owner_pid_) return;
  forget_in_forked_child(lock_);
  try {
    const std::size_t slash = path_.rfind('/');
    const Removed removed =
        remove_run(user_directory_.get(), path_.substr(slash + 1), directory_.get());
    if (removed.error != 0) {
      log_(LogLevel::kWarning, left_text(path_.substr(0, slash), removed));
    }
    lock_.reset();
    remove_user_directory(user_directory_.get(), path_.substr(0, slash));
  } catch (...) {
    // Out of memory: the next start reclaims what is left.
  }
}

std::string make_run_id() {
  std::ifstream boot_file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(boot_file, boot);
  const auto boot_hash =
      static_cast<std::uint32_t>(kernels::xxh3_64(std::as_bytes(std::span(boot)), 0));
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%016llx",
                static_cast<std::uint32_t>(std::time(nullptr)), boot_hash,
                static_cast<unsigned long long>(base::random_number()));
  return text;
}
}  // namespace headrace::swap
