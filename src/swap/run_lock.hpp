// SPDX-License-Identifier: Apache-2.0
// run_lock.hpp: flock with patience, and locks that a forked child lets go of.
#pragma once
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::swap {
enum class LockOutcome { kTaken, kHeldByOther };

// Tries LOCK_EX `tries` times, 50 ms apart: a dying process may hold on for a moment. Throws Error
// kUnsupported where the file system of `path` cannot lock.
LockOutcome lock_exclusive(int fd, const std::string& path, int tries);
inline constexpr int kLockTries = 5;

// A lock belongs to the open file, which a forked child shares: while it holds the descriptor, the
// lock outlives the parent. Registered descriptors are closed in every forked child; `fd` stays in
// place until it is forgotten.
void close_in_forked_child(base::UniqueFd& fd);
void forget_in_forked_child(base::UniqueFd& fd) noexcept;
}  // namespace headrace::swap
