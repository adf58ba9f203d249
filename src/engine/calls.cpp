// SPDX-License-Identifier: Apache-2.0
#include "engine/calls.hpp"

namespace headrace::engine {
Calls::Calls(const Parts& parts) : p_(parts) {
  wake_waiting_.calls = this;
  wake_waiting_.run = [](async::Work* work) noexcept {
    auto* const wake = static_cast<WakeWaiting*>(work);
    wake->posted.store(false);  // first: who asks from here on is not woken yet
    wake->calls->p_.gather_slots.wake();
    wake->calls->p_.pending.wake();
  };
}

void Calls::wake_waiting() {
  if (!wake_waiting_.posted.exchange(true)) p_.conductor.post(wake_waiting_);
}

void Calls::poll_between(const char* call) {
  if (!p_.poll) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - polled_ < async::GiveUp::kEvery) return;
  polled_ = now;
  if (p_.poll()) async::GiveUp::refuse(call);
}

void Calls::until_passed(GroupId group, const char* call) {
  if (!p_.pending.passes_left(group)) return;  // without a switch to the conductor and back
  const auto wait = [&](const async::GiveUp* give_up) {
    return p_.pending.until_passed(group, tiles::Waiting::kNow, give_up);
  };
  if (p_.partition.world_size > 1) return run([&] { return wait(nullptr); });
  run_patiently(call, wait);
}

void Calls::finish_updates(const char* call) {
  if (!p_.plan.deferred) return;
  run_patiently(call, [&](const async::GiveUp* give_up) { return p_.updates.finish(give_up); });
}
}  // namespace headrace::engine
