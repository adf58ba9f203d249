// SPDX-License-Identifier: Apache-2.0
// calls.hpp: lets a trainer's call wait for the engine.
//
// A call becomes a coroutine on the conductor, and its thread helps the update workers until that
// has ended. If EngineOptions::poll may end the wait, the thread calls it ten times a second. When
// it returns true, the thread posts work to the conductor that wakes the coroutines waiting for a
// fill or an update. The one whose GiveUp says so throws kInterrupted; the others, the fills and
// the updates continue.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "async/give_up.hpp"
#include "async/task.hpp"
#include "async/worker_pool.hpp"
#include "base/trace_recorder.hpp"
#include "engine/failure.hpp"
#include "tiles/gather_slots.hpp"
#include "tiles/pending_updates.hpp"
#include "tiles/updates.hpp"

namespace headrace::engine {
// For trainer threads, except where noted.
class Calls {
 public:
  struct Parts {
    const std::function<bool()>& poll;  // null: nothing ends a wait
    Failure& failure;
    const partition::Partition& partition;
    const residency::Plan& plan;
    async::Conductor& conductor;
    async::WorkerPool& workers;
    tiles::GatherSlots& gather_slots;
    tiles::PendingUpdates& pending;
    tiles::Updates& updates;
    base::TraceRecorder* trace;  // null: none
  };
  explicit Calls(const Parts& parts);

  // Runs `make()` on the conductor and returns its result.
  template <class Make>
  auto run(Make&& make) {
    try {
      return async::call(p_.conductor, &p_.workers, std::forward<Make>(make));
    } catch (...) {
      p_.failure.told(std::current_exception());
      throw;
    }
  }
  // The same for a thread of the engine's own: it helps nobody, and its errors are no call's.
  template <class Make>
  auto run_apart(Make&& make) {
    return async::call(p_.conductor, nullptr, std::forward<Make>(make));
  }
  // Runs on the conductor, and nobody waits for it.
  void post(async::Work& work) noexcept { p_.conductor.post(work); }
  // As run(), for a wait that EngineOptions::poll may end: make(give_up), null if it may not.
  template <class Make>
  auto run_patiently(const char* call, Make&& make) {
    const async::GiveUp* none = nullptr;
    if (!p_.poll) return run([&] { return make(none); });
    async::GiveUp give_up(call, p_.workers, p_.poll, [this] { wake_waiting(); });
    try {
      return async::call(p_.conductor, &give_up, [&] { return make(&give_up); });
    } catch (...) {
      p_.failure.told(std::current_exception());
      throw;
    }
  }
  // For use between the parts of a call, none of which waits for long.
  void poll_between(const char* call);

  // Returns when the group's deferred update of an earlier step no longer reads its gradients or
  // writes its weights. With several ranks, EngineOptions::poll does not end this wait: a rank
  // that left amid a reduction would leave the others waiting.
  void until_passed(GroupId group, const char* call);
  // Returns when a deferred step is complete.
  void finish_updates(const char* call);

  // Traces a call of the trainer's.
  base::TraceSpan span(const char* what, std::uint32_t group = TraceEvent::kNone,
                       std::uint64_t bytes = 0) const noexcept {
    return {p_.trace, TraceLane::kTrainer, what, group, TraceEvent::kNone, bytes};
  }

 private:
  struct WakeWaiting : async::Work {
    Calls* calls = nullptr;
    std::atomic<bool> posted{false};
  };
  void wake_waiting();  // any thread

  const Parts p_;
  std::chrono::steady_clock::time_point polled_;
  WakeWaiting wake_waiting_;
};
}  // namespace headrace::engine
