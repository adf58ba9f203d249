// SPDX-License-Identifier: Apache-2.0
// dead_runs.hpp: finds and removes the directories of runs that ended without removing them.
//
// Names in <nvme_path>/headrace-<uid>/:
//   <run id>        a run; dead if its lock is free; ours if its manifest says so
//   .new-<run id>   being made; only under the lock on the user's directory
//   .old-<run id>   being removed; was ours when it was renamed
//   store-<name>    a store (store_file.hpp); never removed here
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "headrace/log.hpp"

namespace headrace::swap {
inline constexpr const char* kBeingMade = ".new-";

// "headrace-1000".
std::string user_directory_name();
// Opens a directory that must belong to this user, and not through a link. On failure, sets the
// errno.
base::UniqueFd open_own_directory(int parent, const std::string& name, int& sys_errno);
// Reads through `directory` itself: a run must be able to end when no further descriptor is left.
// Sets the errno with which the listing ended early, or 0, also of a directory that was removed.
std::vector<std::string> names_in(int directory, int& sys_errno);

struct Removed {
  std::uint64_t bytes = 0;  // the bytes that this freed
  int error = 0;            // why something remains there
  std::string kept;         // the name of what remains; "": the directory itself
  std::string name;         // the directory's current name
};
// Removes the files of `name` in `parent`, then the directory.
Removed remove_run(int parent, const std::string& name, int directory);
// The warning if `error` is not 0.
std::string left_text(const std::string& user_path, const Removed& removed);
void remove_if_empty(int user_directory, const std::string& user_name);

// Removes dead runs. The caller holds the lock on the user's directory. Logs how much that freed,
// and what had to remain.
void reclaim_dead_runs(int user_directory, const std::string& user_path, const LogSink& log);
// The same for a path on which nothing is stored. Creates nothing there, does not wait for locks,
// and does not report what it cannot open.
void reclaim_dead_runs_at(const std::string& nvme_path, const LogSink& log) noexcept;
}  // namespace headrace::swap
