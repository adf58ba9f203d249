// SPDX-License-Identifier: Apache-2.0
// The real conductor: one thread on a Boost.Asio io_context, which no other file knows of.
#define BOOST_ASIO_NO_DEPRECATED 1
#define BOOST_ASIO_DISABLE_VISIBILITY 1
#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer knows no fences; posted work is handed over under a mutex anyway.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK 1
#endif
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "async/conductor.hpp"
#include "async/frame_arena.hpp"
#include "async/thread.hpp"
#include "async/timer_list.hpp"
#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/intrusive_list.hpp"
#include "headrace/error.hpp"

namespace headrace::async {
namespace {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using WorkQueue = base::IntrusiveQueue<&Work::next>;
using AsioTimer =
    asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, asio::io_context::executor_type>;

// Room for the one asio operation of a kind that is ever under way, so that none allocates.
class OperationMemory {
 public:
  void* take(std::size_t size_bytes) noexcept {
    HEADRACE_CHECK(!taken_, "two asio operations of one kind are under way");
    HEADRACE_CHECK(size_bytes <= sizeof storage_, "an asio operation outgrew its memory");
    taken_ = true;
    return storage_;
  }
  void give_back() noexcept { taken_ = false; }

 private:
  alignas(std::max_align_t) std::byte storage_[256];
  bool taken_ = false;
};

template <class T>
class OperationAllocator {
 public:
  using value_type = T;
  explicit OperationAllocator(OperationMemory& memory) noexcept : memory_(&memory) {}
  template <class U>
  OperationAllocator(const OperationAllocator<U>& other) noexcept : memory_(other.memory_) {}
  T* allocate(std::size_t count) noexcept {
    return static_cast<T*>(memory_->take(count * sizeof(T)));
  }
  void deallocate(T*, std::size_t) noexcept { memory_->give_back(); }
  template <class U>
  bool operator==(const OperationAllocator<U>& other) const noexcept {
    return memory_ == other.memory_;
  }

 private:
  template <class U>
  friend class OperationAllocator;
  OperationMemory* memory_;
};

class ConductorAsio final : public Conductor {
 public:
  ConductorAsio()
      : thread_(start_thread("headrace-cond", [this] {
          thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
          context_.run();
        })) {}
  ~ConductorAsio() override {
    HEADRACE_CHECK(!on_conductor(), "a conductor was destroyed by the work that it runs");
    context_.stop();
    thread_.join();
    HEADRACE_CHECK(posted_.empty(), "a conductor was destroyed with work posted to it");
  }

  void post(Work& work) noexcept override {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      posted_.push(work);
      wake = !std::exchange(batch_posted_, true);
    }
    if (wake) asio::post(context_, RunBatch{this});
  }

  void after(Nanoseconds delay, Timer& timer) noexcept override {
    HEADRACE_CHECK(on_conductor(), "a timer was set outside the conductor");
    timers_.add(timer, now(), delay);
    arm_timer();
  }

  Nanoseconds now() const noexcept override { return Clock::now().time_since_epoch(); }
  bool on_conductor() const noexcept override {
    return std::this_thread::get_id() == thread_id_.load(std::memory_order_relaxed);
  }
  void use_frames(FrameArena* frames) noexcept override {
    frames_.store(frames, std::memory_order_release);
  }

  void wait(std::atomic<bool>& done, Helper* helper) override {
    HEADRACE_CHECK(!on_conductor(), "the conductor was waited for by the work that it runs");
    if (helper != nullptr) {
      helper->help_until(done);
    } else {
      done.wait(false, std::memory_order_acquire);
    }
  }

 private:
  struct RunBatch {
    using allocator_type = OperationAllocator<std::byte>;
    allocator_type get_allocator() const noexcept { return allocator_type(self->batch_memory_); }
    void operator()() const noexcept { self->run_batch(); }
    ConductorAsio* self;
  };
  struct RunTimers {
    using allocator_type = OperationAllocator<std::byte>;
    allocator_type get_allocator() const noexcept { return allocator_type(self->timer_memory_); }
    void operator()(const boost::system::error_code&) const noexcept { self->run_timers(); }
    ConductorAsio* self;
  };

  void run_batch() noexcept {
    WorkQueue batch;
    {
      const std::lock_guard lock(mutex_);
      batch = posted_.take_all();
      batch_posted_ = false;
    }
    const FrameArena::Use use(frames_.load(std::memory_order_acquire));
    while (Work* const work = batch.pop()) work->run(work);  // which may free it
  }

  // One asio wait at a time. Where a new timer comes before the one that is waited for, the wait is
  // cancelled and its handler arms the next.
  void arm_timer() noexcept {
    if (timers_.empty()) return;
    const Nanoseconds deadline = timers_.first_deadline();
    if (armed_deadline_) {
      if (deadline < *armed_deadline_) {
        armed_deadline_ = deadline;
        asio_timer_.cancel();
      }
      return;
    }
    armed_deadline_ = deadline;
    asio_timer_.expires_at(Clock::time_point(deadline));
    asio_timer_.async_wait(RunTimers{this});
  }

  void run_timers() noexcept {
    const FrameArena::Use use(frames_.load(std::memory_order_acquire));
    const Nanoseconds due = now();
    while (Timer* timer = timers_.take_due(due)) timer->run(timer);
    armed_deadline_.reset();
    arm_timer();
  }

  OperationMemory batch_memory_;
  OperationMemory timer_memory_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> keep_running_{context_.get_executor()};
  AsioTimer asio_timer_{context_.get_executor()};
  TimerList timers_;
  std::optional<Nanoseconds> armed_deadline_;  // set while an asio wait is under way
  std::atomic<FrameArena*> frames_{nullptr};
  std::mutex mutex_;
  WorkQueue posted_;
  bool batch_posted_ = false;
  std::atomic<std::thread::id> thread_id_;
  std::thread thread_;
};
}  // namespace

std::unique_ptr<Conductor> make_conductor_asio() {
  try {
    return std::make_unique<ConductorAsio>();
  } catch (const boost::system::system_error& error) {
    throw Error(Code::kUnsupported,
                "the event loop could not be set up: " + base::errno_text(error.code().value()) +
                    "; the engine cannot start; raise the limit on open files (ulimit -n)",
                error.code().value());
  }
}
}  // namespace headrace::async
