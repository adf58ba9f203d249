// SPDX-License-Identifier: Apache-2.0
#include "support/conductor_simulated.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <thread>

#include "async/frame_arena.hpp"
#include "async/timer_list.hpp"
#include "base/check.hpp"
#include "headrace/error.hpp"

namespace headrace::async {
namespace {
class ConductorSimulated final : public Conductor {
 public:
  explicit ConductorSimulated(const SimulatedOptions& options)
      : seed_(options.seed), random_(options.seed) {}
  ~ConductorSimulated() override {
    HEADRACE_CHECK(!running_, "a conductor was destroyed by the work that it runs");
  }

  void post(Work& work) noexcept override {
    HEADRACE_CHECK(std::this_thread::get_id() == owner_,
                   "work was posted to a simulated conductor from another thread");
    work.next = ready_;
    ready_ = &work;
    ++ready_count_;
  }

  void after(Nanoseconds delay, Timer& timer) noexcept override {
    HEADRACE_CHECK(on_conductor(), "a timer was set outside the conductor");
    timers_.add(timer, now_, delay);
  }

  Nanoseconds now() const noexcept override { return now_; }
  bool on_conductor() const noexcept override {
    return running_ && std::this_thread::get_id() == owner_;
  }
  void use_frames(FrameArena* frames) noexcept override { frames_ = frames; }

  void wait(std::atomic<bool>& done, Helper*) override {
    HEADRACE_CHECK(std::this_thread::get_id() == owner_,
                   "a simulated conductor was waited for by another thread");
    HEADRACE_CHECK(!running_, "the conductor was waited for by the work that it runs");
    while (!done.load(std::memory_order_acquire)) {
      if (ready_ == nullptr) move_clock();
      run_one();
    }
  }

 private:
  // Makes the timers that are due first ready; which of them runs first is the seed's to say.
  void move_clock() {
    if (timers_.empty()) {
      throw Error(
          Code::kIoStalled,
          "deadlock: at " + std::to_string(now_.count()) +
              " ns of virtual time nothing is left to run; the awaited call cannot end and its "
              "coroutines stay suspended; seed " +
              std::to_string(seed_) + " shows it again");
    }
    now_ = timers_.first_deadline();
    while (Timer* timer = timers_.take_due(now_)) post(*timer);
  }

  void run_one() noexcept {
    std::size_t skip = std::uniform_int_distribution<std::size_t>(0, ready_count_ - 1)(random_);
    Work** link = &ready_;
    while (skip-- > 0) link = &(*link)->next;
    Work* const work = *link;
    *link = work->next;
    --ready_count_;
    work->next = nullptr;
    running_ = true;
    {
      const FrameArena::Use use(frames_);
      work->run(work);
    }
    running_ = false;
  }

  const std::thread::id owner_ = std::this_thread::get_id();
  const std::uint64_t seed_;
  std::mt19937_64 random_;
  Nanoseconds now_{0};
  Work* ready_ = nullptr;
  std::size_t ready_count_ = 0;
  TimerList timers_;
  FrameArena* frames_ = nullptr;
  bool running_ = false;
};
}  // namespace

std::unique_ptr<Conductor> make_conductor_simulated(const SimulatedOptions& options) {
  return std::make_unique<ConductorSimulated>(options);
}
}  // namespace headrace::async
