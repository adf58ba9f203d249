// SPDX-License-Identifier: Apache-2.0
#include "async/unit_pool.hpp"

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

UnitPool::UnitPool(std::uint32_t threads, const std::vector<std::vector<int>>& nodes)
    : owner_pid_(::getpid()), shares_(threads) {
  HEADRACE_CHECK(threads > 0, "a unit pool without threads");
  own_threads_.reserve(threads - 1);
  try {
    for (std::size_t i = 1; i < threads; ++i) {
      own_threads_.push_back(start_thread("headrace-upd" + std::to_string((i - 1) % 1000),
                                          [this, i, cpus = cpus_of_thread(i, threads, nodes)] {
                                            bind_this_thread(cpus);
                                            run_thread(i);
                                          }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

UnitPool::~UnitPool() { stop(); }

void UnitPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : own_threads_) thread.join();
}

bool UnitPool::in_forked_child() const noexcept {
  return !own_threads_.empty() && ::getpid() != owner_pid_;
}

void UnitPool::run(std::uint64_t units, Function function, void* context) noexcept {
  const std::uint64_t threads = shares_.size();
  if (threads == 1 || units <= 1) {
    for (std::uint64_t unit = 0; unit < units; ++unit) function(context, unit);
    return;
  }
  std::unique_lock lock(mutex_);
  function_ = function;
  context_ = context;
  for (std::uint64_t i = 0; i < threads; ++i) {
    // The first units % threads runs are one longer.
    const auto first_of = [&](std::uint64_t thread) {
      return units / threads * thread + std::min(thread, units % threads);
    };
    shares_[i].next.store(first_of(i), std::memory_order_relaxed);
    shares_[i].end = first_of(i + 1);
  }
  working_ = own_threads_.size();
  ++round_;
  changed_.notify_all();
  lock.unlock();
  work(0);
  lock.lock();
  changed_.wait(lock, [&] { return working_ == 0; });
}

void UnitPool::work(std::size_t index) noexcept {
  for (std::size_t k = 0; k < shares_.size(); ++k) {
    Share& share = shares_[(index + k) % shares_.size()];
    for (;;) {
      const std::uint64_t unit = share.next.fetch_add(1, std::memory_order_relaxed);
      if (unit >= share.end) break;
      function_(context_, unit);
    }
  }
}

void UnitPool::run_thread(std::size_t index) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    work(index);
    lock.lock();
    if (--working_ == 0) changed_.notify_all();
  }
}
}  // namespace headrace::async
