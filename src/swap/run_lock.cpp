// SPDX-License-Identifier: Apache-2.0
#include "swap/run_lock.hpp"

#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error_text.hpp"
#include "headrace/error.hpp"

namespace headrace::swap {
namespace {
LockOutcome lock_as(int kind, int fd, const std::string& path, int tries) {
  for (int attempt = 1;; ++attempt) {
    if (::flock(fd, kind | LOCK_NB) == 0) return LockOutcome::kTaken;
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
}  // namespace

LockOutcome lock_exclusive(int fd, const std::string& path, int tries) {
  return lock_as(LOCK_EX, fd, path, tries);
}

LockOutcome lock_shared(int fd, const std::string& path, int tries) {
  return lock_as(LOCK_SH, fd, path, tries);
}

int lock_holder(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return 0;
  std::ifstream locks("/proc/locks");
  // 3: FLOCK  ADVISORY  WRITE 4711 fe:00:1048583 0 EOF
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned major = 0, minor = 0;
    unsigned long inode = 0;
    const int found =
        std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &major, &minor, &inode);
    if (found == 4 && inode == status.st_ino && ::makedev(major, minor) == status.st_dev)
      return pid;
  }
  return 0;
}

bool process_runs(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (pid <= 0 || !std::getline(file, text)) return false;
  const std::size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return false;
  char state = 'X';
  unsigned long flags = 0;
  const int found =
      std::sscanf(text.c_str() + name_end, ") %c %*d %*d %*d %*d %*d %lu", &state, &flags);
  constexpr unsigned long kExiting =
      4;  // the kernel's PF_EXITING: to free its memory takes a while
  return found == 2 && state != 'Z' && state != 'X' && (flags & kExiting) == 0;
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
