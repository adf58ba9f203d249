// SPDX-License-Identifier: Apache-2.0
// The directory of a run: made under a temporary name with its lock held, found dead by that lock
// alone.
//
// Names in <nvme_path>/headrace-<uid>/:
//   <run id>        a run; dead if its lock is free; ours if its manifest says so
//   .new-<run id>   being made; only under the lock on the user's directory
//   .old-<run id>   being removed; was ours when it was renamed
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error_text.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "swap/refusal.hpp"
#include "swap/run_lock.hpp"
#include "swap/run_manifest.hpp"
#include "swap/swap_file.hpp"

namespace headrace::swap {
namespace {
using base::UniqueFd;
constexpr const char* kBeingMade = ".new-";
constexpr const char* kBeingRemoved = ".old-";
constexpr std::size_t kPrefix = 5;
constexpr int kUserLockTries = 1200;  // a minute: another start may be removing large files

[[noreturn]] void fail(const std::string& what, const std::string& path, int sys_errno) {
  throw Error(code_of(sys_errno),
              what + " " + path + ": " + base::errno_text(sys_errno) +
                  "; the run cannot start there; " + what_helps(sys_errno),
              sys_errno);
}

// 32 hex digits; a run's further drives add "-1", "-2", ...
bool is_run_id(const std::string& name) {
  constexpr const char* kHex = "0123456789abcdef";
  if (name.size() < 32 || name.find_first_not_of(kHex) < 32) return false;
  if (name.size() == 32) return true;
  return name[32] == '-' && name.size() > 33 && name.size() <= 37 &&
         name.find_first_not_of("0123456789", 33) == std::string::npos;
}

// Reads through the descriptor at hand: a run must be able to end when no other is to be had.
std::vector<std::string> names_in(int directory) {
  std::vector<std::string> names;
  alignas(dirent64) std::array<char, 32 * 1024> buffer;
  ::lseek(directory, 0, SEEK_SET);
  ssize_t got = 0;
  while ((got = ::getdents64(directory, buffer.data(), buffer.size())) > 0) {
    for (ssize_t at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(buffer.data() + at);
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      at += entry->d_reclen;
    }
  }
  return names;
}

// Opens a directory that must be this user's own, not reached through a link.
UniqueFd open_own_directory(int parent, const std::string& name, int& sys_errno) {
  UniqueFd directory(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  sys_errno = directory ? 0 : errno;
  struct stat status {};
  if (directory && (::fstat(directory.get(), &status) != 0 || status.st_uid != ::geteuid())) {
    sys_errno = EPERM;
    directory.reset();
  }
  return directory;
}

struct Removed {
  std::uint64_t bytes = 0;  // that this gave back
  int error = 0;            // what kept something there
};
// Removes the files of `name` in `parent`, then the directory.
Removed remove_run(int parent, const std::string& name, int directory) {
  std::string current = name;
  if (name[0] != '.') {
    // Under this name the rest is found by the next start, should this one die half-way.
    const std::string doomed = kBeingRemoved + name;
    if (::renameat(parent, name.c_str(), parent, doomed.c_str()) == 0) current = doomed;
  }
  Removed removed;
  std::vector<std::string> files = names_in(directory);
  // The lock last: while it is there, it says who works here.
  std::partition(files.begin(), files.end(),
                 [](const std::string& file) { return file != "lock"; });
  for (const std::string& file : files) {
    struct stat status {};
    if (::fstatat(directory, file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (::unlinkat(directory, file.c_str(), 0) == 0) {
      removed.bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    } else if (removed.error == 0) {
      removed.error = errno;
    }
  }
  const bool gone = ::unlinkat(parent, current.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
  if (!gone && removed.error == 0) removed.error = errno;
  return removed;
}

// By way of the directory itself: its path may be too long by now, or lead elsewhere.
void remove_if_empty(int user_directory, const std::string& user_name) {
  ::unlinkat(user_directory, ("../" + user_name).c_str(), AT_REMOVEDIR);
}

// True if nothing but what a start makes is in there: it died before it had a manifest.
bool holds_only_a_start(int directory) {
  const std::vector<std::string> names = names_in(directory);
  return std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name == "lock" || name == "manifest.json";
  });
}

// What a name in the user's directory is, and the pid that its manifest names.
struct Candidate {
  bool removable = false;  // if its lock is free
  int pid = 0;
};
Candidate look_at(const std::string& name, int directory) {
  if (is_run_id(name)) {
    const std::optional<int> pid = pid_of_our_manifest(directory, name);
    return {pid.has_value(), pid.value_or(0)};
  }
  if (!is_run_id(name.substr(std::min(name.size(), kPrefix)))) return {};
  return {name.starts_with(kBeingRemoved) ||
              (name.starts_with(kBeingMade) && holds_only_a_start(directory)),
          0};
}

// Only a hint on how long to wait for a lock; what the lock says holds.
bool process_runs(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (pid <= 0 || !std::getline(file, text)) return false;
  const std::size_t state = text.rfind(") ") + 2;
  return state < text.size() && text[state] != 'Z' && text[state] != 'X';
}

struct Reclaimed {
  std::uint64_t bytes = 0;
  std::uint32_t runs = 0;
};

// Under the lock on the user's directory.
Reclaimed reclaim_dead_runs(int user_directory, const std::string& user_path) {
  Reclaimed sum;
  int patience = kLockTries;  // for all together: a killed process may still be letting go
  for (const std::string& name : names_in(user_directory)) {
    int error = 0;
    const UniqueFd directory = open_own_directory(user_directory, name, error);
    if (!directory) continue;
    const Candidate candidate = look_at(name, directory.get());
    if (!candidate.removable) continue;
    const UniqueFd lock(
        ::openat(directory.get(), "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!lock && is_run_id(name)) continue;  // without a lock nothing says whether it lives
    if (lock) {
      const int tries = process_runs(candidate.pid) ? 1 : patience;
      const std::string path = user_path + "/" + name + "/lock";
      if (lock_exclusive(lock.get(), path, tries) != LockOutcome::kTaken) {
        if (tries > 1) patience = 1;
        continue;
      }
      struct stat status {};
      if (::fstat(lock.get(), &status) != 0 || status.st_nlink == 0)
        continue;  // it ended meanwhile
    }
    sum.bytes += remove_run(user_directory, name, directory.get()).bytes;
    if (lock && !name.starts_with(kBeingMade)) ++sum.runs;
  }
  return sum;
}

// Opens (makes) the user's directory and takes its lock, under which runs are made and dead ones
// removed.
UniqueFd open_user_directory(int parent, const std::string& name, const std::string& path) {
  while (true) {
    const bool made = ::mkdirat(parent, name.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) fail("could not make", path, errno);
    int error = 0;
    UniqueFd directory = open_own_directory(parent, name, error);
    if (error == ENOENT) continue;  // the last run of another process has just removed it
    if (error != 0) {
      if (made) ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
      fail("could not use", path, error);
    }
    try {
      if (lock_exclusive(directory.get(), path, kUserLockTries) != LockOutcome::kTaken) {
        fail("another run has been starting for a minute in", path, EWOULDBLOCK);
      }
    } catch (const Error& error) {
      // Nobody can start here, so what is empty is what we have just made.
      if (error.code() == Code::kUnsupported) ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
      throw;
    }
    struct stat status {};
    if (::fstat(directory.get(), &status) != 0) fail("could not use", path, errno);
    if (status.st_nlink == 0) continue;  // removed between open and lock
    if ((status.st_mode & 0077) != 0) ::fchmod(directory.get(), 0700);
    return directory;
  }
}

// The run's directory under its temporary name, with the lock taken and the manifest written.
UniqueFd make_run(int user_directory, const std::string& temporary, const std::string& path,
                  const std::string& run_id, UniqueFd& lock) {
  if (::mkdirat(user_directory, temporary.c_str(), 0700) != 0) fail("could not make", path, errno);
  int error = 0;
  UniqueFd directory = open_own_directory(user_directory, temporary, error);
  if (error != 0) fail("could not use", path, error);
  lock.reset(
      ::openat(directory.get(), "lock", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) fail("could not make", path + "/lock", errno);
  if (lock_exclusive(lock.get(), path + "/lock", kLockTries) != LockOutcome::kTaken) {
    fail("could not lock", path + "/lock", EWOULDBLOCK);
  }
  write_manifest(directory.get(), path, run_id);
  if (::renameat(user_directory, temporary.c_str(), user_directory, run_id.c_str()) != 0) {
    fail("could not rename", path, errno);
  }
  return directory;
}

void remove_user_directory(int user_directory, const std::string& user_path) {
  // Without the lock another process is about to make a run in there.
  if (lock_exclusive(user_directory, user_path, kLockTries) != LockOutcome::kTaken) return;
  // Another run may have removed it before; then the name is a later one's, which is not ours to
  // lock.
  struct stat status {};
  const bool linked = ::fstat(user_directory, &status) == 0 && status.st_nlink > 0;
  if (linked) remove_if_empty(user_directory, user_path.substr(user_path.rfind('/') + 1));
  ::flock(user_directory, LOCK_UN);
}

void say(const LogSink& log, LogLevel level, const std::string& text) { log(level, text); }

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// What works here and is still worth knowing.
void remark_on_file_system(const PathProbe& path, const LogSink& log) {
  const std::string place = path.path + " is on " + path.file_system;
  if (is_one_of(path.file_system,
                {"nfs", "cifs", "smb2", "ceph", "lustre", "gpfs", "beegfs", "9p"})) {
    say(log, LogLevel::kWarning,
        place +
            ", a file system that may lie on another machine; every step moves the swapped state "
            "there and back; name a directory on a drive of this machine for full speed");
  }
  if (is_one_of(path.file_system, {"btrfs", "zfs", "bcachefs"})) {
    say(log, LogLevel::kInfo,
        place +
            ", which writes in other places than before, so what is reserved may still run out; "
            "leave room free, or name a directory on ext4 or xfs");
  }
}
}  // namespace

RunDirectory::RunDirectory(const PathProbe& path, const std::string& run_id, LogSink log)
    : log_(base::sink_or_stderr(std::move(log))), owner_pid_(static_cast<int>(::getpid())) {
  const std::string user_name = "headrace-" + std::to_string(::geteuid());
  const std::string user_path = path.path + "/" + user_name;
  path_ = user_path + "/" + run_id;
  const UniqueFd parent(
      TEMP_FAILURE_RETRY(::open(path.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!parent) fail("could not open", path.path, errno);
  user_directory_ = open_user_directory(parent.get(), user_name, user_path);

  const std::string temporary = kBeingMade + run_id;
  close_in_forked_child(lock_);
  try {
    const Reclaimed reclaimed = reclaim_dead_runs(user_directory_.get(), user_path);
    reclaimed_bytes_ = reclaimed.bytes;
    reclaimed_runs_ = reclaimed.runs;
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
  ::flock(user_directory_.get(),
          LOCK_UN);  // said aloud: a child forked meanwhile shares the descriptor
  if (reclaimed_runs_ > 0) {
    say(log_, LogLevel::kInfo,
        "removed what " + std::to_string(reclaimed_runs_) +
            (reclaimed_runs_ == 1 ? " dead run" : " dead runs") + " left in " + user_path + ": " +
            base::format_bytes(reclaimed_bytes_));
  }
  remark_on_file_system(path, log_);
  if (path.memory_backed) {
    say(log_, LogLevel::kInfo,
        path.path + " is on " + path.file_system +
            ": what is swapped stays in memory, as headrace.allow_memory_backed allows");
  } else if (!path.direct) {
    say(log_, LogLevel::kWarning,
        path.path + " is on " + path.file_system +
            ", which has no O_DIRECT; transfers go through the page cache, which costs CPU and "
            "memory; "
            "name a directory on ext4 or xfs for full speed");
  }
}

RunDirectory::~RunDirectory() {
  if (static_cast<int>(::getpid()) != owner_pid_) return;
  forget_in_forked_child(lock_);
  try {
    const std::size_t slash = path_.rfind('/');
    const Removed removed =
        remove_run(user_directory_.get(), path_.substr(slash + 1), directory_.get());
    if (removed.error != 0) {
      say(log_, LogLevel::kWarning,
          "could not remove " + path_ + ": " + base::errno_text(removed.error) +
              "; what is left takes up space until the next run on that path removes it");
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
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) {
    throw Error(Code::kUnsupported, "getrandom failed: " + base::errno_text(errno), errno);
  }
  const auto boot_hash =
      static_cast<std::uint32_t>(base::xxh3_64(std::as_bytes(std::span(boot)), 0));
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%016llx",
                static_cast<std::uint32_t>(std::time(nullptr)), boot_hash,
                static_cast<unsigned long long>(random));
  return text;
}
}  // namespace headrace::swap
