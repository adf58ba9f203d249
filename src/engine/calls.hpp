// SPDX-License-Identifier: Apache-2.0
// calls.hpp: how a call of the trainer's waits for the engine.
//
// A call becomes a coroutine on the conductor; its thread helps the update workers until that has
// ended. Where EngineOptions::poll may end the wait, the thread asks it ten times a second. On yes
// it posts one piece of work to the conductor, which wakes the coroutines that wait for a fill or
// an update: the one whose GiveUp says so throws kInterrupted, the others wait on. What they wait
// for goes on either way.
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
// Trainer threads, but where said otherwise.
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
  // The same for a wait that EngineOptions::poll may end: `make(give_up)`, null: nothing may.
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
  // Between the parts of a call that does not wait for long at once.
  void poll_between(const char* call);

  // Returns when the group's update, deferred by a step before, reads its gradients and writes its
  // weights no more. A gradient that several ranks have begun to reduce is waited for to the end.
  void until_passed(GroupId group, const char* call);
  // Returns when nothing is left of a deferred step.
  void finish_updates(const char* call);

  // A call of the trainer's, for the trace.
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
