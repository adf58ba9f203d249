// SPDX-License-Identifier: Apache-2.0
// conductor.hpp: the seam to the one thread that all control flow of an engine runs on.
//
// Coroutines are created, resumed and destroyed on it, so engine state needs no locks.
// conductor_asio is a real thread on a Boost.Asio io_context. Tests bring one that runs on the
// calling thread under a virtual clock, in an order drawn from a seed (tests/support).
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "async/work.hpp"

namespace headrace::async {
using Nanoseconds = std::chrono::nanoseconds;
class FrameArena;

struct Timer : Work {
  Nanoseconds deadline{0};  // set by the conductor
};

// Something a waiting thread can do meanwhile (the worker pool's share of an update).
class Helper {
 public:
  virtual ~Helper() = default;
  // Works, or sleeps, until `done` is true.
  virtual void help_until(const std::atomic<bool>& done) = 0;
  // Sets `done` and wakes the thread in help_until(done), which returns only once this call has let
  // go of the helper: the waiting thread may destroy both right after.
  virtual void finish(std::atomic<bool>& done) noexcept = 0;
};

class Conductor {
 public:
  virtual ~Conductor() = default;
  // From any thread. Work posted by one thread runs in the order it was posted (simulated: in
  // seeded order), never inside this call. Allocates nothing; wakes the conductor once per batch.
  virtual void post(Work& work) noexcept = 0;
  // On the conductor only: runs `timer` once, `delay` from now; a negative delay counts as none. No
  // cancel: a timer that is no longer wanted runs and finds nothing to do; its owner outlives it,
  // or the conductor. Timers run in the order of their deadlines.
  virtual void after(Nanoseconds delay, Timer& timer) noexcept = 0;
  // Monotonic; virtual time under simulation.
  virtual Nanoseconds now() const noexcept = 0;
  // True inside work and timers that the conductor runs.
  virtual bool on_conductor() const noexcept = 0;
  // The arena that coroutines created by work posted from now on take their frames from (null: the
  // heap). It outlives the conductor.
  virtual void use_frames(FrameArena* frames) noexcept = 0;
  // Blocks the calling thread (not the conductor) until `done` is true. `done` is set on the
  // conductor: by helper->finish(done), or without a helper by a store and notify_all(). With a
  // helper the thread helps meanwhile. The simulated conductor runs its work here and throws
  // headrace::Error kIoStalled ("deadlock") when nothing is left to run and `done` is false.
  virtual void wait(std::atomic<bool>& done, Helper* helper) = 0;
};

// Starts the thread "headrace-cond" (async/thread.hpp). The destructor joins it; by then no work
// may be posted and no thread may be inside post(). Timers that are still set are dropped. Throws
// headrace::Error kUnsupported when the machine gives no thread or no descriptors.
std::unique_ptr<Conductor> make_conductor_asio();
}  // namespace headrace::async
