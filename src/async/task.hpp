// SPDX-License-Identifier: Apache-2.0
// task.hpp: Task<T>, a coroutine that starts when it is awaited, and TaskGroup, children that are always joined.
//
// Tasks live on the conductor. A frame is destroyed only when its coroutine has finished: never while it is suspended
// on an operation, and there are no detached coroutines.
#pragma once
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include "async/conductor.hpp"
#include "async/frame_arena.hpp"
#include "base/check.hpp"

namespace headrace::async {
template <class T = void>
class [[nodiscard]] Task;

namespace detail {
// A frame is preceded by the arena it came from, so that it finds its way back.
void* take_frame(std::size_t size_bytes);
void give_back_frame(void* frame, std::size_t size_bytes) noexcept;

struct PromiseBase {
  std::coroutine_handle<> continuation = std::noop_coroutine();
  std::exception_ptr error;

  static void* operator new(std::size_t size_bytes) { return take_frame(size_bytes); }
  static void operator delete(void* frame, std::size_t size_bytes) noexcept { give_back_frame(frame, size_bytes); }
  std::suspend_always initial_suspend() noexcept { return {}; }
  struct Final {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) noexcept {
      return self.promise().continuation;
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
  void return_value(U&& result) { value.emplace(std::forward<U>(result)); }
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
    if (handle_) handle_.destroy();
  }

  auto operator co_await() && noexcept {
    struct Awaiter {
      std::coroutine_handle<promise_type> task;
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
        task.promise().continuation = awaiting;
        return task;
      }
      T await_resume() { return task.promise().take(); }
    };
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

// A coroutine that starts at once and destroys itself at its end: the root of what TaskGroup and call() start.
struct Root {
  struct promise_type {
    static void* operator new(std::size_t size_bytes) { return take_frame(size_bytes); }
    static void operator delete(void* frame, std::size_t size_bytes) noexcept { give_back_frame(frame, size_bytes); }
    Root get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { base::check_failed(__FILE__, __LINE__, "no exception", "a root task threw"); }
  };
};
}  // namespace detail

// Children that run beside their parent. join() must be awaited before the group is destroyed; it waits for all of them
// and rethrows the first error. cancelled() turns true at that error: children look at it before they start new work.
class TaskGroup {
 public:
  TaskGroup() = default;
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;
  ~TaskGroup() { HEADRACE_CHECK(running_ == 0, "a task group was destroyed before join()"); }

  // Runs `task` up to its first suspension now.
  void spawn(Task<> task) {
    ++running_;
    run(this, std::move(task));
  }
  bool cancelled() const noexcept { return error_ != nullptr; }
  std::uint32_t running() const noexcept { return running_; }

  Task<> join() {
    struct UntilAllDone {
      TaskGroup& group;
      bool await_ready() noexcept { return group.running_ == 0; }
      void await_suspend(std::coroutine_handle<> handle) noexcept { group.joiner_ = handle; }
      void await_resume() noexcept {}
    };
    co_await UntilAllDone{*this};
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static detail::Root run(TaskGroup* group, Task<> task) {
    try {
      co_await std::move(task);
    } catch (...) {
      if (!group->error_) group->error_ = std::current_exception();
    }
    if (--group->running_ == 0 && group->joiner_) std::exchange(group->joiner_, nullptr).resume();
  }

  std::uint32_t running_ = 0;
  std::coroutine_handle<> joiner_;
  std::exception_ptr error_;
};

// Runs `make()` (which returns a Task<T>) on the conductor and blocks the calling thread until it has finished; returns
// its value or rethrows its error. `helper`: see Conductor::wait. Not on the conductor itself.
template <class Make>
auto call(Conductor& conductor, FrameArena* frames, Helper* helper, Make&& make) {
  using TaskType = decltype(make());
  using Value = decltype(std::declval<typename TaskType::promise_type&>().take());
  struct State : Work {
    Make* make = nullptr;
    FrameArena* frames = nullptr;
    Helper* helper = nullptr;
    std::atomic<bool> done{false};
    std::exception_ptr error;
    std::conditional_t<std::is_void_v<Value>, char, std::optional<Value>> value{};

    static detail::Root start(State* state) {
      Helper* const helper = state->helper;
      try {
        if constexpr (std::is_void_v<Value>) {
          co_await (*state->make)();
        } else {
          state->value.emplace(co_await (*state->make)());
        }
      } catch (...) {
        state->error = std::current_exception();
      }
      // After this store the caller may return and `state` be gone: notify_all() and wake() touch an address, not it.
      state->done.store(true, std::memory_order_release);
      state->done.notify_all();
      if (helper != nullptr) helper->wake();
    }
  } state;
  state.make = &make;
  state.frames = frames;
  state.helper = helper;
  state.run = [](Work* work) noexcept {
    auto* self = static_cast<State*>(work);
    FrameArena::Use use(self->frames);
    State::start(self);
  };
  conductor.post(state);
  conductor.wait(state.done, helper);
  if (state.error) std::rethrow_exception(state.error);
  if constexpr (!std::is_void_v<Value>) return std::move(*state.value);
}
}  // namespace headrace::async
