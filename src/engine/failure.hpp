// SPDX-License-Identifier: Apache-2.0
// failure.hpp: what ended an engine, and whether anybody has been told.
//
// A failed engine can only be closed: its state is at odds with its drives, or with the other
// ranks. A deferred update fails after its step() has returned. All calls that wait for the update
// throw its error. If none waits, the next call that begins throws it, and if that is close(),
// close() logs it. Later calls get kFailed with the first cause. Example: the write of tile 7 ends
// in EIO while the trainer computes. fail_deferred() keeps the error; gather() begins, and
// throw_if_ended() throws it as kIo; the gather after that gets kFailed: "... failed earlier ...".
#pragma once
#include <atomic>
#include <exception>
#include <mutex>
#include <string>

#include "headrace/collective.hpp"

namespace headrace::engine {
// Threads: any.
class Failure {
 public:
  explicit Failure(Collective& collective) : collective_(collective) {}

  // From a signal handler too. For good.
  void interrupt() noexcept { interrupted_.store(true); }
  const std::atomic<bool>& interrupted() const noexcept { return interrupted_; }

  // Nothing but close() may follow. The other ranks are told.
  void fail(const std::string& cause) noexcept;
  // The same for a step that has returned: the next call throws `error` itself.
  void fail_deferred(const std::exception_ptr& error) noexcept;
  // A call is about to throw `error`: no other call needs to.
  void told(const std::exception_ptr& error) noexcept;

  // For close(): what ended a deferred update, if no call has thrown it. Empty if there is nothing
  // to tell, or if the trainer's own interrupt() ended it.
  std::string untold();

  // Throws what ended a deferred update, unless a call has; then kInterrupted and kFailed.
  void throw_if_ended(const char* call);
  // The same between the parts of a long call, which goes on after a failure that is not its own.
  void throw_if_interrupted(const char* call) {
    if (interrupted_.load()) throw_if_ended(call);
  }

 private:
  Collective& collective_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // the rest
  std::string first_cause_;
  std::exception_ptr deferred_;  // until a call has thrown it
};
}  // namespace headrace::engine
