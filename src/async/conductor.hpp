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
  // Works or sleeps until `done` is true.
  virtual void help_until(const std::atomic<bool>& done) = 0;
  // Sets `done` and wakes the thread in help_until(done). That call returns only when this one no
  // longer uses the helper, so the waiting thread may then destroy both.
  virtual void finish(std::atomic<bool>& done) noexcept = 0;
};

class Conductor : public Executor {
 public:
  // From any thread. Runs each thread's work in the order it was posted (simulated: in seeded
  // order), never inside this call. Allocates nothing; wakes the conductor once per batch.
  void post(Work& work) noexcept override = 0;
  // On the conductor only: runs `timer` once, after `delay`; a negative delay counts as 0. A timer
  // cannot be cancelled: one that is no longer needed runs and does nothing. Its owner outlives it,
  // or the conductor. Timers run in the order of their deadlines.
  virtual void after(Nanoseconds delay, Timer& timer) noexcept = 0;
  // Monotonic; the simulated conductor returns virtual time.
  virtual Nanoseconds now() const noexcept = 0;
  // True inside work and timers that the conductor runs.
  virtual bool on_conductor() const noexcept = 0;
  // Sets the arena for the frames of coroutines that work posted from now on creates (null: the
  // heap). It outlives the conductor.
  virtual void use_frames(FrameArena* frames) noexcept = 0;
  // Blocks the calling thread, which is not the conductor, until `done` is true. The conductor sets
  // it by helper->finish(done), or without a helper by a store and notify_all(). With a helper, the
  // thread helps while it waits. The simulated conductor runs its work here, and throws
  // headrace::Error kIoStalled ("deadlock") if nothing is left to run and `done` is false.
  virtual void wait(std::atomic<bool>& done, Helper* helper) = 0;
};

// Starts the thread "headrace-cond" (async/thread.hpp). The destructor joins it; before that, no
// thread may be inside post() and no posted work may be left. It drops timers that are still set.
// Throws headrace::Error kUnsupported if the machine provides no thread or no descriptors.
std::unique_ptr<Conductor> make_conductor_asio();
}  // namespace headrace::async
