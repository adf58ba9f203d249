// SPDX-License-Identifier: Apache-2.0
#include "program/signals.hpp"

#include <atomic>
#include <csignal>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
using Call = void (*)() noexcept;
volatile std::sig_atomic_t first_signal = 0;
std::atomic<Call> to_call{nullptr};
static_assert(std::atomic<Call>::is_always_lock_free, "read in a signal handler");

void note_signal(int number) {
  if (first_signal == 0) first_signal = number;
  if (const Call call = to_call.load()) call();
}
}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    // What a parent had us ignore (nohup) stays ignored.
    if (::sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    // A second SIGQUIT ends the process at once and leaves a core.
    action.sa_flags = SA_RESTART | (number == SIGQUIT ? static_cast<int>(SA_RESETHAND) : 0);
    ::sigaction(number, &action, nullptr);
  }
  // Told by errno where they happen.
  for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
}

int signal_received() noexcept { return first_signal; }

void check_signal() {
  if (first_signal != 0) throw Error(Code::kInterrupted, "ended by a signal");
}

void on_signal(void (*call)() noexcept) noexcept { to_call = call; }
}  // namespace headrace::tools
