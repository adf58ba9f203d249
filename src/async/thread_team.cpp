// SPDX-License-Identifier: Apache-2.0
#include "async/thread_team.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "async/thread.hpp"
#include "base/check.hpp"

namespace headrace::async {
namespace {
// The CPUs of the node on which thread `index` belongs; none where there is no choice.
std::vector<int> cpus_of_thread(std::size_t index, std::size_t threads,
                                const std::vector<std::vector<int>>& nodes) {
  if (nodes.size() < 2) return {};
  std::size_t cpus = 0;
  for (const std::vector<int>& node : nodes) cpus += node.size();
  std::size_t place = (2 * index + 1) * cpus / (2 * threads);  // the middle of the thread's part
  for (const std::vector<int>& node : nodes) {
    if (place < node.size()) return node;
    place -= node.size();
  }
  return {};
}
}  // namespace

ThreadTeam::ThreadTeam(std::uint32_t threads, const Options& options)
    : owner_pid_(::getpid()), shares_(threads) {
  HEADRACE_CHECK(threads > 0, "a team without threads");
  own_threads_.reserve(threads - 1);
  try {
    for (std::size_t i = 1; i < threads; ++i) {
      own_threads_.push_back(
          start_thread(options.name + std::to_string((i - 1) % 1000),
                       [this, i, cpus = cpus_of_thread(i, threads, options.nodes)] {
                         bind_this_thread(cpus);
                         run_thread(i);
                       }));
    }
  } catch (...) {
    if (options.where_refused == WhereRefused::kWorkWithFewer) return;
    stop();
    throw;
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    begun_.notify_all();
  }
  for (std::thread& thread : own_threads_) thread.join();
}

bool ThreadTeam::in_forked_child() const noexcept {
  return !own_threads_.empty() && ::getpid() != owner_pid_;
}

void ThreadTeam::run(std::uint64_t units, Function function, void* context) noexcept {
  if (own_threads_.empty() || units <= 1) {
    for (std::uint64_t unit = 0; unit < units; ++unit) function(context, unit);
    return;
  }
  std::unique_lock lock(mutex_);
  deal(units);
  function_ = function;
  context_ = context;
  ++round_;
  open_ = true;
  begun_.notify_all();
  lock.unlock();
  work(0);
  lock.lock();
  open_ = false;
  left_.wait(lock, [&] { return joined_ == 0; });
}

void ThreadTeam::deal(std::uint64_t units) noexcept {
  const std::uint64_t threads = shares_.size();
  // The first units % threads runs are one longer.
  const auto first_of = [&](std::uint64_t thread) {
    return units / threads * thread + std::min(thread, units % threads);
  };
  for (std::uint64_t i = 0; i < threads; ++i) {
    shares_[i].next.store(first_of(i), std::memory_order_relaxed);
    shares_[i].end = first_of(i + 1);
  }
}

void ThreadTeam::work(std::size_t index) noexcept {
  for (std::size_t k = 0; k < shares_.size(); ++k) {
    Share& share = shares_[(index + k) % shares_.size()];
    for (;;) {
      const std::uint64_t unit = share.next.fetch_add(1, std::memory_order_relaxed);
      if (unit >= share.end) break;
      function_(context_, unit);
    }
  }
}

// A thread that wakes too late to take a unit sleeps on.
void ThreadTeam::run_thread(std::size_t index) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return stop_ || (open_ && round_ != seen); });
    if (stop_) return;
    seen = round_;
    ++joined_;
    lock.unlock();
    work(index);
    lock.lock();
    if (--joined_ == 0) left_.notify_one();
  }
}
}  // namespace headrace::async
