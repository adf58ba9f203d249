// SPDX-License-Identifier: Apache-2.0
// dead_runs.hpp: directories of runs that ended without removing them: told from living ones, and
// removed.
//
// Names in <nvme_path>/headrace-<uid>/:
//   <run id>        a run; dead if its lock is free; ours if its manifest says so
//   .new-<run id>   being made; only under the lock on the user's directory
//   .old-<run id>   being removed; was ours when it was renamed
#pragma once
#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"
#include "headrace/log.hpp"

namespace headrace::swap {
inline constexpr const char* kBeingMade = ".new-";

// "headrace-1000".
std::string user_directory_name();
// Opens a directory that must be this user's own, not reached through a link. Of what it could not,
// the errno.
base::UniqueFd open_own_directory(int parent, const std::string& name, int& sys_errno);

struct Removed {
  std::uint64_t bytes = 0;  // that this gave back
  int error = 0;            // what kept something there
  std::string kept;         // what that is, "": the directory itself
  std::string name;         // what the directory is called now
};
// Removes the files of `name` in `parent`, then the directory.
Removed remove_run(int parent, const std::string& name, int directory);
// The warning where `error` is not 0.
std::string left_text(const std::string& user_path, const Removed& removed);
void remove_if_empty(int user_directory, const std::string& user_name);

// Removes dead runs; who calls it has the lock on the user's directory. Says how much that gave
// back, and what it had to leave.
void reclaim_dead_runs(int user_directory, const std::string& user_path, const LogSink& log);
// The same for a path on which nothing is stored: makes nothing there, waits for nobody, and says
// nothing of what cannot be opened.
void reclaim_dead_runs_at(const std::string& nvme_path, const LogSink& log) noexcept;
}  // namespace headrace::swap
