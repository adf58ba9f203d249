// SPDX-License-Identifier: Apache-2.0
#include "swap/dead_runs.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <vector>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "swap/refusal.hpp"
#include "swap/run_lock.hpp"
#include "swap/run_manifest.hpp"

namespace headrace::swap {
namespace {
using base::UniqueFd;
constexpr const char* kBeingRemoved = ".old-";
constexpr std::size_t kPrefix = 5;

// 32 hex digits; a run's further drives add "-1", "-2", ...
bool is_run_id(const std::string& name) {
  constexpr const char* kHex = "0123456789abcdef";
  if (name.size() < 32 || name.find_first_not_of(kHex) < 32) return false;
  if (name.size() == 32) return true;
  return name[32] == '-' && name.size() > 33 && name.size() <= 37 &&
         name.find_first_not_of("0123456789", 33) == std::string::npos;
}
}  // namespace

std::vector<std::string> names_in(int directory, int& sys_errno) {
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
  sys_errno = got < 0 && errno != ENOENT ? errno : 0;
  return names;
}

std::string user_directory_name() { return "headrace-" + std::to_string(::geteuid()); }

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

Removed remove_run(int parent, const std::string& name, int directory) {
  std::string current = name;
  if (name[0] != '.') {
    // Under this name the rest is found by the next start, should this one die half-way.
    const std::string doomed = kBeingRemoved + name;
    if (::renameat(parent, name.c_str(), parent, doomed.c_str()) == 0) current = doomed;
  }
  Removed removed;
  std::vector<std::string> files = names_in(directory, removed.error);
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
      removed.kept = file;
    }
  }
  const bool gone = ::unlinkat(parent, current.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
  if (!gone && removed.error == 0) removed.error = errno;
  removed.name = current;
  return removed;
}

std::string left_text(const std::string& user_path, const Removed& removed) {
  const std::string what = "could not remove " + user_path + "/" + removed.name +
                           (removed.kept.empty() ? "" : "/" + removed.kept) + ": " +
                           base::errno_text(removed.error);
  if (removed.error == EISDIR || removed.error == ENOTEMPTY)
    return what + "; no run makes a directory there, so it stays, and only it; remove it by hand";
  return what + "; what is left takes up space until the next run on that path removes it";
}

// By way of the directory itself: its path may be too long by now, or lead elsewhere.
void remove_if_empty(int user_directory, const std::string& user_name) {
  ::unlinkat(user_directory, ("../" + user_name).c_str(), AT_REMOVEDIR);
}

namespace {
// True if nothing but what a start makes is in there: it died before it had a manifest.
bool holds_only_a_start(int directory) {
  int error = 0;
  const std::vector<std::string> names = names_in(directory, error);
  return error == 0 && std::all_of(names.begin(), names.end(), [](const std::string& name) {
           return name == "lock" || name == "manifest.json";
         });
}

// A name in the user's directory, and the pid that its manifest names.
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

std::vector<std::string> names_of_runs(int user_directory, const std::string& user_path,
                                       const LogSink& log) {
  int error = 0;
  std::vector<std::string> names = names_in(user_directory, error);
  if (error != 0) {
    log(LogLevel::kWarning, "could not list " + user_path + ": " + base::errno_text(error) +
                                "; what dead runs have left there may stay, and takes up space "
                                "until the next run on that path removes it; " +
                                what_helps(error));
  }
  return names;
}
}  // namespace

void reclaim_dead_runs(int user_directory, const std::string& user_path, const LogSink& log) {
  std::uint64_t bytes = 0;
  std::uint32_t runs = 0;
  int patience = kLockTries;  // for all together: a killed process may still be letting go
  for (const std::string& name : names_of_runs(user_directory, user_path, log)) {
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
    const Removed removed = remove_run(user_directory, name, directory.get());
    bytes += removed.bytes;
    if (lock && !name.starts_with(kBeingMade)) ++runs;
    if (removed.error != 0) log(LogLevel::kWarning, left_text(user_path, removed));
  }
  if (runs == 0) return;
  log(LogLevel::kInfo, "removed what " + std::to_string(runs) +
                           (runs == 1 ? " dead run" : " dead runs") + " left in " + user_path +
                           ": " + base::format_bytes(bytes));
}

void reclaim_dead_runs_at(const std::string& nvme_path, const LogSink& log) noexcept {
  try {
    const std::string user_name = user_directory_name(), user_path = nvme_path + "/" + user_name;
    const UniqueFd parent(::open(nvme_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent) return;
    int error = 0;
    const UniqueFd directory = open_own_directory(parent.get(), user_name, error);
    // The holder of the lock is starting a run there, and removes what there is.
    if (!directory || lock_exclusive(directory.get(), user_path, 1) != LockOutcome::kTaken) return;
    struct stat status {};
    if (::fstat(directory.get(), &status) != 0 || status.st_nlink == 0) return;  // gone meanwhile
    reclaim_dead_runs(directory.get(), user_path, log);
    remove_if_empty(directory.get(), user_name);
    ::flock(directory.get(), LOCK_UN);  // said aloud: a child forked meanwhile shares it
  } catch (...) {
    // No locks there, or no memory: nothing that this run wants of the path.
  }
}
}  // namespace headrace::swap
