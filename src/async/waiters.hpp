// SPDX-License-Identifier: Apache-2.0
// waiters.hpp: coroutines that wait until a condition changes. Conductor only.
#pragma once
#include <coroutine>

#include "base/check.hpp"
#include "base/intrusive_list.hpp"

namespace headrace::async {
//   while (!condition) co_await waiters.changed();
class Waiters {
 public:
  class [[nodiscard]] Changed {
   public:
    explicit Changed(Waiters& waiters) noexcept : waiters_(waiters) {}
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) noexcept {
      handle_ = handle;
      waiters_.waiting_.push(*this);
    }
    void await_resume() const noexcept {}

   private:
    friend class Waiters;
    Waiters& waiters_;
    std::coroutine_handle<> handle_;
    Changed* next_ = nullptr;
  };

  Waiters() = default;
  ~Waiters() { HEADRACE_CHECK(waiting_.empty(), "a coroutine still waits"); }
  Waiters(const Waiters&) = delete;
  Waiters& operator=(const Waiters&) = delete;

  Changed changed() noexcept { return Changed(*this); }
  // Resumes all current waiters inside this call, in the order they came. If they wait again, they
  // need another wake().
  void wake() noexcept {
    auto woken = waiting_.take_all();
    // A waiter lives in the frame that resume() runs, so it has left the list by then.
    while (Changed* const waiter = woken.pop()) waiter->handle_.resume();
  }

 private:
  base::IntrusiveQueue<&Changed::next_> waiting_;
};
}  // namespace headrace::async
