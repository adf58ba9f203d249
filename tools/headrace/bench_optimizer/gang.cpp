// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/gang.hpp"

#include <algorithm>

#include "async/thread.hpp"
#include "program/progress.hpp"

namespace headrace::tools {
Gang::Gang(std::uint32_t most_threads) {
  try {
    for (std::uint32_t i = 0; i + 1 < most_threads; ++i)
      threads_.push_back(async::start_thread("headrace-bench", [this, i] { serve(i); }));
  } catch (...) {
    end();
    throw;
  }
}

Gang::~Gang() { end(); }

void Gang::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Gang::take_units() {
  for (std::uint64_t unit = 0; (unit = next_.fetch_add(1, std::memory_order_relaxed)) < units_;)
    (*work_)(unit);
}

void Gang::serve(std::uint32_t index) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || pass_ != seen; });
    if (ending_) return;
    seen = pass_;
    if (index >= wanted_) continue;
    lock.unlock();
    take_units();
    lock.lock();
    if (--working_ == 0) changed_.notify_all();
  }
}

double Gang::run(std::uint32_t threads, std::uint64_t units,
                 const std::function<void(std::uint64_t)>& work) {
  const Stopwatch watch;
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    units_ = units;
    next_ = 0;
    wanted_ = working_ =
        std::min(std::max(threads, 1u) - 1, static_cast<std::uint32_t>(threads_.size()));
    ++pass_;
  }
  if (wanted_ > 0) changed_.notify_all();
  take_units();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return working_ == 0; });
  return watch.seconds();
}
}  // namespace headrace::tools
