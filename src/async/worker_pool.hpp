// SPDX-License-Identifier: Apache-2.0
// worker_pool.hpp: the threads that pass over data: they update tiles, verify them and compute
// checksums.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "async/conductor.hpp"
#include "base/intrusive_list.hpp"

namespace headrace::async {
// `threads` share the work: threads - 1 of the pool's own ("headrace-updN", async/thread.hpp), at
// least one. If threads > 1, a trainer thread that waits in Conductor::wait with this as its helper
// works too. With threads == 0, work runs on the conductor, one job at a time, and takes the
// virtual time that `takes` returns: for the simulated conductor.
// Work sets the rounding mode itself if it needs to (optimizer_cpu).
class WorkerPool final : public Helper {
 public:
  // Throws headrace::Error kUnsupported if the machine provides no more threads.
  WorkerPool(Conductor& conductor, std::uint32_t threads, std::function<Nanoseconds()> takes = {});
  // No work may be in progress.
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  std::uint32_t threads() const noexcept { return threads_; }

  // co_await pool.for_units(n, function, context), on the conductor: calls function(context, i)
  // once for each i in [0, n), on any of the threads, in any order. Resumes on the conductor when
  // all are done, and sees what they wrote. `function` must not throw. Several jobs may be in
  // progress: first come, first served. Allocates nothing. Cost: a lock per unit, so a unit is a
  // block of elements, not a single one.
  using Function = void (*)(void* context, std::uint64_t unit) noexcept;
  class Units;
  Units for_units(std::uint64_t count, Function function, void* context) noexcept;

  void help_until(const std::atomic<bool>& done) override;
  // Does the same for about `time`, and returns whether `done` is true.
  bool help_for(const std::atomic<bool>& done, std::chrono::milliseconds time);
  void finish(std::atomic<bool>& done) noexcept override;

 private:
  // Lives in the awaiting coroutine's frame, under mutex_ from start() until its last unit has
  // ended; then it belongs to the conductor and no worker touches it again. Example with two
  // threads and three units: A takes 0, B takes 1, A takes 2 (the job leaves the list of untaken
  // ones), A ends 2, B ends 1 and sees units_left == 0. B alone posts the job, with the mutex
  // released. The conductor may resume the coroutine at once, and destroy its frame with the job in
  // it before post() returns.
  struct Job : Timer {
    Function function = nullptr;
    void* context = nullptr;
    std::uint64_t count = 0;
    std::uint64_t next_unit = 0;
    std::uint64_t units_left = 0;  // not yet ended
    Job* next_job = nullptr;
    std::coroutine_handle<> waiting;
  };
  void start(Job& job);
  void run_thread();
  void run_unit(std::unique_lock<std::mutex>& lock);
  void stop() noexcept;
  static void run_whole(Work* work) noexcept;
  static void resume(Work* work) noexcept;

  Conductor& conductor_;
  const std::uint32_t threads_;
  const std::function<Nanoseconds()> takes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  base::IntrusiveQueue<&Job::next_job> untaken_;  // jobs with units that no thread has taken
  std::uint64_t jobs_ = 0;                        // started, not yet handed to the conductor
  bool stop_ = false;
  std::vector<std::thread> own_threads_;

 public:
  class [[nodiscard]] Units {
   public:
    bool await_ready() const noexcept { return job_.count == 0; }
    void await_suspend(std::coroutine_handle<> handle) {
      job_.waiting = handle;
      pool_.start(job_);
    }
    void await_resume() const noexcept {}

   private:
    friend class WorkerPool;
    Units(WorkerPool& pool, std::uint64_t count, Function function, void* context) noexcept;
    WorkerPool& pool_;
    Job job_;
  };
};
}  // namespace headrace::async
