// SPDX-License-Identifier: Apache-2.0
#include "async/thread.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "headrace/error.hpp"

namespace headrace::async {
namespace {
// A new thread inherits the mask, so it is set around the start: no signal can slip in before.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};
}  // namespace

std::thread start_thread(const std::string& name, std::function<void()> body) {
  HEADRACE_CHECK(name.size() <= 15, "the kernel keeps 15 bytes of a thread's name");
  const SignalsBlocked blocked;
  try {
    return std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    });
  } catch (const std::system_error& error) {
    throw Error(
        Code::kUnsupported,
        "no thread could be started: " + base::errno_text(error.code().value()) + "; '" + name +
            "' is missing, so the engine cannot start; raise the limit on tasks (ulimit -u, the "
            "cgroup's pids.max), or lower headrace.update_threads or headrace.queue_depth",
        error.code().value());
  }
}

void bind_this_thread(const std::vector<int>& cpus) noexcept {
  if (cpus.empty()) return;
  const int count = *std::ranges::max_element(cpus) + 1;
  cpu_set_t* const set = CPU_ALLOC(count);
  if (set == nullptr) return;
  const std::size_t size = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(size, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), size, set);
  ::sched_setaffinity(0, size, set);
  CPU_FREE(set);
}
}  // namespace headrace::async
