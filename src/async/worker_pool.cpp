// SPDX-License-Identifier: Apache-2.0
#include "async/worker_pool.hpp"

#include <algorithm>
#include <string>

#include "async/thread.hpp"
#include "base/check.hpp"

namespace headrace::async {
WorkerPool::WorkerPool(Conductor& conductor, std::uint32_t threads,
                       std::function<Nanoseconds()> takes)
    : conductor_(conductor), threads_(threads), takes_(std::move(takes)) {
  const std::uint32_t own = threads == 0 ? 0 : std::max(1u, threads - 1);
  own_threads_.reserve(own);
  try {
    for (std::uint32_t i = 0; i < own; ++i) {
      own_threads_.push_back(
          start_thread("headrace-upd" + std::to_string(i % 1000), [this] { run_thread(); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() {
  stop();
  HEADRACE_CHECK(jobs_ == 0, "a worker pool was destroyed with work under way");
}

void WorkerPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : own_threads_) thread.join();
  own_threads_.clear();
}

WorkerPool::Units::Units(WorkerPool& pool, std::uint64_t count, Function function,
                         void* context) noexcept
    : pool_(pool) {
  job_.function = function;
  job_.context = context;
  job_.count = count;
  job_.units_left = count;
}

WorkerPool::Units WorkerPool::for_units(std::uint64_t count, Function function,
                                        void* context) noexcept {
  return Units(*this, count, function, context);
}

void WorkerPool::start(Job& job) {
  HEADRACE_CHECK(conductor_.on_conductor(), "work was started outside the conductor");
  if (threads_ == 0) {
    job.run = &run_whole;
    if (takes_) {
      conductor_.after(takes_(), job);
    } else {
      conductor_.post(job);
    }
    return;
  }
  job.run = &resume;
  const std::lock_guard lock(mutex_);
  untaken_.push(job);
  ++jobs_;
  // All: one alone may be a helper that is about to leave.
  changed_.notify_all();
}

// Takes one unit of the first job, runs it and hands the job over if it was the last to end. The
// lock is held on entry and on return.
void WorkerPool::run_unit(std::unique_lock<std::mutex>& lock) {
  Job& job = *untaken_.front();
  const std::uint64_t unit = job.next_unit++;
  if (job.next_unit == job.count) untaken_.pop();
  lock.unlock();
  job.function(job.context, unit);
  lock.lock();
  if (--job.units_left > 0) return;
  --jobs_;
  lock.unlock();
  conductor_.post(job);
  lock.lock();
}

void WorkerPool::run_thread() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!untaken_.empty()) {
      run_unit(lock);
    } else if (stop_) {
      return;
    } else {
      changed_.wait(lock);
    }
  }
}

void WorkerPool::help_until(const std::atomic<bool>& done) {
  std::unique_lock lock(mutex_);
  while (!done.load(std::memory_order_acquire)) {
    if (threads_ > 1 && !untaken_.empty()) {
      run_unit(lock);
    } else {
      changed_.wait(lock);
    }
  }
}

bool WorkerPool::help_for(const std::atomic<bool>& done, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::unique_lock lock(mutex_);
  while (!done.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() >= end) return false;
    if (threads_ > 1 && !untaken_.empty()) {
      run_unit(lock);
    } else {
      changed_.wait_until(lock, end);
    }
  }
  return true;
}

// Under the lock, so that help_until() cannot return before this is through with the pool.
void WorkerPool::finish(std::atomic<bool>& done) noexcept {
  const std::lock_guard lock(mutex_);
  done.store(true, std::memory_order_release);
  changed_.notify_all();
}

void WorkerPool::run_whole(Work* work) noexcept {
  auto* const job = static_cast<Job*>(work);
  for (std::uint64_t unit = 0; unit < job->count; ++unit) job->function(job->context, unit);
  job->waiting.resume();
}

void WorkerPool::resume(Work* work) noexcept { static_cast<Job*>(work)->waiting.resume(); }
}  // namespace headrace::async
