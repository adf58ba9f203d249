// SPDX-License-Identifier: Apache-2.0
#include "watched.hpp"

#include <array>
#include <atomic>

#include "program/signals.hpp"

namespace headrace::tools {
namespace {
std::array<std::atomic<Engine*>, 4> watched{};
static_assert(std::atomic<Engine*>::is_always_lock_free, "read in a signal handler");

void interrupt_all() noexcept {
  for (const auto& place : watched) {
    if (Engine* const engine = place.load()) engine->interrupt();
  }
}
}  // namespace

Watched::Watched(Engine& engine) : engine_(engine) {
  for (auto& place : watched) {
    Engine* none = nullptr;
    if (place.compare_exchange_strong(none, &engine)) break;
  }
  on_signal(interrupt_all);
  if (signal_received() != 0) engine_.interrupt();
}

Watched::~Watched() {
  for (auto& place : watched) {
    Engine* expected = &engine_;
    place.compare_exchange_strong(expected, nullptr);
  }
}
}  // namespace headrace::tools
