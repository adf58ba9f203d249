// SPDX-License-Identifier: Apache-2.0
#include "program/signals.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
volatile std::sig_atomic_t first_signal = 0;
std::array<std::atomic<const TellOnSignal*>, 4> told{};
std::atomic<int> in_handler{0};
static_assert(std::atomic<const TellOnSignal*>::is_always_lock_free, "read in a signal handler");

void note_signal(int number) {
  const int saved = errno;
  if (first_signal == 0) first_signal = number;
  in_handler.fetch_add(1);
  for (const auto& place : told) {
    if (const TellOnSignal* const to = place.load()) to->tell();
  }
  in_handler.fetch_sub(1);
  errno = saved;
}
}  // namespace

void install_signal_handlers(std::initializer_list<int> even_if_ignored) {
  struct sigaction action {};
  action.sa_handler = note_signal;
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    const bool ignored = ::sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (ignored && std::ranges::count(even_if_ignored, number) == 0) continue;
    // A second SIGQUIT ends the process at once and leaves a core, for who looks into a run that
    // hangs.
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

TellOnSignal::TellOnSignal(void (*tell)(void*) noexcept, void* context) noexcept
    : tell_(tell), context_(context) {
  for (auto& place : told) {
    const TellOnSignal* none = nullptr;
    if (place.compare_exchange_strong(none, this)) break;
  }
  if (first_signal != 0) tell_(context_);
}

TellOnSignal::~TellOnSignal() {
  for (auto& place : told) {
    const TellOnSignal* own = this;
    place.compare_exchange_strong(own, nullptr);
  }
  while (in_handler.load() > 0) std::this_thread::yield();
}
}  // namespace headrace::tools
