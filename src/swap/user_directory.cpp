// SPDX-License-Identifier: Apache-2.0
#include "swap/user_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "swap/dead_runs.hpp"
#include "swap/refusal.hpp"
#include "swap/run_lock.hpp"

namespace headrace::swap {
using base::UniqueFd;

namespace {
constexpr int kUserLockTries = 1200;  // a minute: another start may be removing large files
}  // namespace

void fail_at(const std::string& what, const std::string& path, int sys_errno) {
  throw Error(code_of(sys_errno),
              what + " " + path + ": " + base::errno_text(sys_errno) +
                  "; the run cannot start there; " + what_helps(sys_errno),
              sys_errno);
}

UniqueFd open_user_directory(int parent, const std::string& name, const std::string& path) {
  while (true) {
    const bool made = ::mkdirat(parent, name.c_str(), 0700) == 0;
    if (!made && errno != EEXIST) fail_at("could not make", path, errno);
    int error = 0;
    UniqueFd directory = open_own_directory(parent, name, error);
    if (error == ENOENT) continue;  // the last run of another process has just removed it
    if (error != 0) {
      if (made) ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
      fail_at("could not use", path, error);
    }
    try {
      if (lock_exclusive(directory.get(), path, kUserLockTries) != LockOutcome::kTaken) {
        fail_at("another run has been starting for a minute in", path, EWOULDBLOCK);
      }
    } catch (const Error& error) {
      // Nobody can start here, so what is empty is what we have just made.
      if (error.code() == Code::kUnsupported) ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
      throw;
    }
    struct stat status {};
    if (::fstat(directory.get(), &status) != 0) fail_at("could not use", path, errno);
    if (status.st_nlink == 0) continue;  // removed between open and lock
    if ((status.st_mode & 0077) != 0) ::fchmod(directory.get(), 0700);
    return directory;
  }
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
}  // namespace headrace::swap
