// SPDX-License-Identifier: Apache-2.0
// task.hpp: Task<T>, a coroutine that starts when it is awaited, and TaskGroup, which always joins
// its children.
//
// Tasks live on the conductor. A frame is destroyed only after its coroutine has finished, never
// while it is suspended on an operation. There are no detached coroutines.
#pragma once
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "async/conductor.hpp"
#include "async/frame_arena.hpp"
#include "base/check.hpp"

namespace headrace::async {
template <class T = void>
class [[nodiscard]] Task;

namespace detail {
// Before each frame lies a pointer to the arena that it came from and must return to.
void* take_frame(std::size_t size_bytes);
void give_back_frame(void* frame, std::size_t size_bytes) noexcept;

struct PromiseBase {
  std::coroutine_handle<> continuation;  // null until the awaiting coroutine has been suspended
  bool started = false;
  std::exception_ptr error;

  static void* operator new(std::size_t size_bytes) { return take_frame(size_bytes); }
  static void operator delete(void* frame, std::size_t size_bytes) noexcept {
    give_back_frame(frame, size_bytes);
  }
  std::suspend_always initial_suspend() noexcept { return {}; }
  struct Final {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) noexcept {
      const std::coroutine_handle<> next = self.promise().continuation;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  Final final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { error = std::current_exception(); }
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object() noexcept;
  template <class U>
  void return_value(U&& result) {
    value.emplace(std::forward<U>(result));
  }
  T take() {
    if (error) std::rethrow_exception(error);
    return std::move(*value);
  }
};
template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object() noexcept;
  void return_void() noexcept {}
  void take() {
    if (error) std::rethrow_exception(error);
  }
};
}  // namespace detail

template <class T>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::Promise<T>;
  Task() = default;
  explicit Task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (!handle_) return;
    HEADRACE_CHECK(!handle_.promise().started || handle_.done(),
                   "a task was destroyed while it was suspended on an operation");
    handle_.destroy();
  }

  auto operator co_await() && noexcept {
    struct Awaiter {
      std::coroutine_handle<promise_type> task;
      bool await_ready() noexcept { return false; }
      // The task runs within this call up to its first suspension. If it has finished by then, the
      // awaiting coroutine simply continues. So the stack is never deeper than the chain of
      // awaiting coroutines, even if the compiler does not turn symmetric transfers into tail calls
      // (gcc does not without optimisation or under the sanitizers).
      bool await_suspend(std::coroutine_handle<> awaiting) {
        task.promise().started = true;
        task.resume();
        if (task.done()) return false;
        task.promise().continuation = awaiting;
        return true;
      }
      T await_resume() { return task.promise().take(); }
    };
    HEADRACE_CHECK(handle_ && !handle_.promise().started, "a task is awaited once");
    return Awaiter{handle_};
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

namespace detail {
template <class T>
Task<T> Promise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}

// A coroutine that starts at once and destroys itself at its end. TaskGroup and call() start their
// work in one.
struct Root {
  struct promise_type {
    static void* operator new(std::size_t size_bytes) { return take_frame(size_bytes); }
    static void operator delete(void* frame, std::size_t size_bytes) noexcept {
      give_back_frame(frame, size_bytes);
    }
    Root get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept {
      base::check_failed(__FILE__, __LINE__, "no exception", "a root task threw");
    }
  };
};
}  // namespace detail

// Children that run concurrently with their parent. Await join() before the group is destroyed,
// also if an exception leaves the scope. It waits for all children and rethrows the first error.
// From that error on, cancelled() returns true, and children check it before they start new work.
// After join() the group may be used again.
//
// Example: spawn(a) returns when a waits for a read. spawn(b) returns when b has failed. Then
// cancelled() is true, and the parent spawns no c. It awaits join(), which suspends it, as a still
// runs. The read ends and resumes a. When a ends, it is the last child, and resumes the parent from
// its own stack. Only now does join() throw b's error.
class TaskGroup {
 public:
  TaskGroup() = default;
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;
  ~TaskGroup() { HEADRACE_CHECK(running_ == 0, "a task group was destroyed before join()"); }

  // Runs `task` up to its first suspension now. A task that never suspends has ended when this
  // returns. So a child may have failed, or used up a resource that the next one needs, between two
  // calls of spawn(): check cancelled() in between. The last child to end resumes the joiner from
  // its own stack.
  void spawn(Task<> task) { run(this, std::move(task)); }
  // Awaits `task` instead of running it concurrently. If it fails, the group keeps the error and
  // the awaiting coroutine continues: cancelled() reports the error, and join() throws it.
  Task<> keep_error_of(Task<> task) {
    try {
      co_await std::move(task);
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }
  bool cancelled() const noexcept { return error_ != nullptr; }
  std::uint32_t running() const noexcept { return running_; }

  Task<> join() {
    co_await UntilAllDone{*this};
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  struct UntilAllDone {
    TaskGroup& group;
    bool await_ready() noexcept { return group.running_ == 0; }
    void await_suspend(std::coroutine_handle<> handle) noexcept {
      HEADRACE_CHECK(!group.joiner_, "a task group has one parent that joins it");
      group.joiner_ = handle;
    }
    void await_resume() noexcept {}
  };

  static detail::Root run(TaskGroup* group, Task<> task) {
    ++group->running_;  // counted here, so that a frame that cannot be allocated is not counted
    try {
      co_await std::move(task);
    } catch (...) {
      if (!group->error_) group->error_ = std::current_exception();
    }
    task = Task<>();
    if (--group->running_ == 0 && group->joiner_) std::exchange(group->joiner_, nullptr).resume();
  }

  std::uint32_t running_ = 0;
  std::coroutine_handle<> joiner_;
  std::exception_ptr error_;
};

namespace detail {
// The state of one call(), in the calling thread's frame.
template <class Make, class Value>
struct Call : Work {
  Make* make = nullptr;
  Helper* helper = nullptr;
  std::atomic<bool> done{false};
  std::exception_ptr error;
  std::conditional_t<std::is_void_v<Value>, char, std::optional<Value>> value{};

  static void start(Work* work) noexcept {
    auto* const self = static_cast<Call*>(work);
    try {
      run_task(self);
    } catch (...) {  // no memory for the frame
      self->error = std::current_exception();
      finish(self);
    }
  }
  static Root run_task(Call* self) {
    try {
      if constexpr (std::is_void_v<Value>) {
        co_await (*self->make)();
      } else {
        self->value.emplace(co_await (*self->make)());
      }
    } catch (...) {
      self->error = std::current_exception();
    }
    finish(self);
  }
  // As soon as `done` is true, the caller may return and destroy `self`. So nothing of `self` is
  // read after that; notify_all() uses only the address. A helper sets `done` under the mutex that
  // its waiter sleeps on, so that the waiter cannot miss the change and sleep.
  static void finish(Call* self) noexcept {
    if (self->helper != nullptr) {
      self->helper->finish(self->done);
    } else {
      std::atomic<bool>& done = self->done;
      done.store(true, std::memory_order_release);
      done.notify_all();
    }
  }
};
}  // namespace detail

// Runs `make()` (which returns a Task<T>) on the conductor, and blocks the calling thread until the
// task has finished. Returns its value or rethrows its error. `helper`: see Conductor::wait. Not on
// the conductor itself. Frames come from the arena of Conductor::use_frames().
template <class Make>
auto call(Conductor& conductor, Helper* helper, Make&& make) {
  using Value = decltype(std::declval<typename decltype(make())::promise_type&>().take());
  detail::Call<std::remove_reference_t<Make>, Value> state;
  state.make = &make;
  state.helper = helper;
  state.run = &decltype(state)::start;
  conductor.post(state);
  conductor.wait(state.done, helper);
  if (state.error) std::rethrow_exception(state.error);
  if constexpr (!std::is_void_v<Value>) return std::move(*state.value);
}
}  // namespace headrace::async
