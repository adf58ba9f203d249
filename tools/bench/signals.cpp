// SPDX-License-Identifier: Apache-2.0
#include "signals.hpp"

#include <array>
#include <atomic>
#include <csignal>

namespace headrace::bench {
namespace {
volatile std::sig_atomic_t first_signal = 0;
std::array<std::atomic<Engine*>, 4> watched{};
static_assert(std::atomic<Engine*>::is_always_lock_free, "read in a signal handler");

void on_signal(int number) {
  if (first_signal == 0) first_signal = number;
  for (const auto& place : watched) {
    if (Engine* const engine = place.load()) engine->interrupt();
  }
}
}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    // What a parent had us ignore (nohup) stays ignored.
    if (::sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(number, &action, nullptr);
  }
  ::signal(SIGPIPE, SIG_IGN);
}

int signal_received() noexcept { return first_signal; }

void check_signal() {
  if (first_signal != 0) throw Error(Code::kInterrupted, "ended by a signal");
}

Watched::Watched(Engine& engine) : engine_(engine) {
  for (auto& place : watched) {
    Engine* none = nullptr;
    if (place.compare_exchange_strong(none, &engine)) break;
  }
  if (first_signal != 0) engine_.interrupt();
}

Watched::~Watched() {
  for (auto& place : watched) {
    Engine* expected = &engine_;
    place.compare_exchange_strong(expected, nullptr);
  }
}
}  // namespace headrace::bench
