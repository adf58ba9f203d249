// SPDX-License-Identifier: Apache-2.0
#include "swap/run_lock.hpp"

#include <pthread.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error_text.hpp"
#include "headrace/error.hpp"

namespace headrace::swap {
LockOutcome lock_exclusive(int fd, const std::string& path, int tries) {
  for (int attempt = 1;; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return LockOutcome::kTaken;
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EWOULDBLOCK) {
      throw Error(
          Code::kUnsupported,
          "flock on " + path + " failed: " + base::errno_text(error) +
              "; without locks a live run cannot be told from a dead one, so its files could be "
              "deleted under it; name an nvme_path on a local file system",
          error);
    }
    if (attempt >= tries) return LockOutcome::kHeldByOther;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

namespace {
// Fork handlers are process-wide by nature, so is their list. Never destroyed: a fork may come
// during exit.
struct ForkList {
  std::mutex mutex;
  std::vector<base::UniqueFd*> descriptors;
};
ForkList& fork_list() {
  static ForkList* const list = new ForkList;
  return *list;
}

void before_fork() { fork_list().mutex.lock(); }
void after_fork_in_parent() { fork_list().mutex.unlock(); }
void after_fork_in_child() {
  for (base::UniqueFd* const fd : fork_list().descriptors) fd->reset();
  fork_list().descriptors.clear();
  fork_list().mutex.unlock();
}
}  // namespace

void close_in_forked_child(base::UniqueFd& fd) {
  static std::once_flag installed;
  std::call_once(installed,
                 [] { ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
  const std::lock_guard lock(fork_list().mutex);
  fork_list().descriptors.push_back(&fd);
}

void forget_in_forked_child(base::UniqueFd& fd) noexcept {
  const std::lock_guard lock(fork_list().mutex);
  std::erase(fork_list().descriptors, &fd);
}
}  // namespace headrace::swap
