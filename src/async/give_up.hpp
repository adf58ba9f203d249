// SPDX-License-Identifier: Apache-2.0
// give_up.hpp: while a call waits, asks the trainer ten times a second whether to continue.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "async/worker_pool.hpp"
#include "headrace/error.hpp"

namespace headrace::async {
// Belongs to one call, and lies on the stack of its thread, which waits with this as its helper.
class GiveUp final : public async::Helper {
 public:
  static constexpr std::chrono::milliseconds kEvery{100};

  // `wake` posts work to the conductor that makes the waiting coroutines check asked() again.
  GiveUp(const char* call, async::WorkerPool& workers, const std::function<bool()>& poll,
         std::function<void()> wake)
      : call_(call), workers_(workers), poll_(poll), wake_(std::move(wake)) {}

  // Called on the conductor.
  bool asked() const noexcept { return asked_.load(); }
  [[noreturn]] static void refuse(const char* call) {
    throw Error(Code::kInterrupted,
                std::string(call) +
                    ": given up, as EngineOptions::poll asked; nothing was changed, and the engine "
                    "is whole. Call it again to go on.");
  }
  [[noreturn]] void refuse() const { refuse(call_); }

  void help_until(const std::atomic<bool>& done) override {
    while (!workers_.help_for(done, kEvery)) {
      if (asked_.load() || !poll_()) continue;
      asked_.store(true);
      wake_();
    }
  }
  void finish(std::atomic<bool>& done) noexcept override { workers_.finish(done); }

 private:
  const char* call_;
  async::WorkerPool& workers_;
  const std::function<bool()>& poll_;
  std::function<void()> wake_;
  std::atomic<bool> asked_{false};
};

// Whether a wait should end; with null it never should.
inline bool given_up(const GiveUp* give_up) noexcept {
  return give_up != nullptr && give_up->asked();
}
}  // namespace headrace::async
