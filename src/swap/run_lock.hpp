// SPDX-License-Identifier: Apache-2.0
// run_lock.hpp: flock with several tries, who holds a lock, and locks that a forked child releases.
#pragma once
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::swap {
enum class LockOutcome { kTaken, kHeldByOther };

// Tries LOCK_EX `tries` times, 50 ms apart, since a dying process may hold it for a moment. Throws
// Error kUnsupported if the file system of `path` does not support locks.
LockOutcome lock_exclusive(int fd, const std::string& path, int tries);
// The same with LOCK_SH, which several may hold, and nobody beside LOCK_EX.
LockOutcome lock_shared(int fd, const std::string& path, int tries);
inline constexpr int kLockTries = 5;

// Hints on how long to wait for a lock; what the lock says holds.
// The process that took the lock on this open file's inode; 0: unknown, as in another container.
int lock_holder(int fd);
// Whether there is such a process, and it is not about to end.
bool process_runs(int pid);

// A lock belongs to the open file, which a forked child shares: while the child holds the
// descriptor, the lock outlives the parent. So every forked child closes registered descriptors.
// `fd` stays in place until it is forgotten.
void close_in_forked_child(base::UniqueFd& fd);
void forget_in_forked_child(base::UniqueFd& fd) noexcept;

// While it lives. Declare it after `fd`, and before `fd` holds anything that a child must not keep.
class ClosedInForkedChild {
 public:
  explicit ClosedInForkedChild(base::UniqueFd& fd) : fd_(fd) { close_in_forked_child(fd_); }
  ~ClosedInForkedChild() { forget_in_forked_child(fd_); }
  ClosedInForkedChild(const ClosedInForkedChild&) = delete;
  ClosedInForkedChild& operator=(const ClosedInForkedChild&) = delete;

 private:
  base::UniqueFd& fd_;
};
}  // namespace headrace::swap
