// SPDX-License-Identifier: Apache-2.0
// failure.hpp: the cause that ended an engine, and whether a call has thrown it.
//
// A failed engine can only be closed: its state does not match its drives, or the other ranks. A
// deferred update fails after its step() has returned. All calls that wait for the update throw its
// error. If none waits, the next call that begins throws it, and if that is close(), close() logs
// it. Later calls get kFailed with the first cause. Example: the write of tile 7 fails with EIO
// while the trainer computes. fail_deferred() keeps the error. gather() begins, and
// throw_if_ended() throws it as kIo. The next gather gets kFailed: "... failed earlier ...".
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

  // From a signal handler too. It cannot be undone.
  void interrupt() noexcept { interrupted_.store(true); }
  const std::atomic<bool>& interrupted() const noexcept { return interrupted_; }

  // After this, only close() works. Informs the other ranks.
  void fail(const std::string& cause) noexcept;
  // The same for a step that has returned: the next call throws `error` itself.
  void fail_deferred(const std::exception_ptr& error) noexcept;
  // A call is about to throw `error`, so no other call needs to.
  void told(const std::exception_ptr& error) noexcept;

  // Whether only close() works.
  bool ended() const noexcept { return failed_.load() || interrupted_.load(); }
  // For close(): the error that ended a deferred update, if no call has thrown it. Empty if there
  // is none, or if the trainer's own interrupt() ended the update.
  std::string untold();

  // Throws a deferred update's error, unless a call has thrown it; then kInterrupted and kFailed.
  void throw_if_ended(const char* call);
  // For use between the parts of a long call, which continues after a failure that is not its own.
  void throw_if_interrupted(const char* call) {
    if (interrupted_.load()) throw_if_ended(call);
  }

 private:
  Collective& collective_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // protects the rest
  std::string first_cause_;
  std::exception_ptr deferred_;  // until a call has thrown it
};
}  // namespace headrace::engine
