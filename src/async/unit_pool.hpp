// SPDX-License-Identifier: Apache-2.0
// unit_pool.hpp: threads for a call that blocks until its work is done: what WorkerPool is where
// there is no conductor.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace::async {
// `threads` (at least 1) share the work: the caller's and threads - 1 of its own
// ("headrace-updN"). Each begins with a run of neighbouring units of its own, the same for the same
// count, and takes from the others' when it is done: what a thread touched first it meets again.
class UnitPool {
 public:
  // `nodes`: CPUs per NUMA node. With two or more, neighbouring threads share a node, as many as
  // its part of the CPUs, and its own stay there; the caller's goes where it goes. Throws
  // headrace::Error kUnsupported when the machine gives no more threads.
  explicit UnitPool(std::uint32_t threads, const std::vector<std::vector<int>>& nodes = {});
  // Not in a forked child.
  ~UnitPool();
  UnitPool(const UnitPool&) = delete;
  UnitPool& operator=(const UnitPool&) = delete;

  std::uint32_t threads() const noexcept { return static_cast<std::uint32_t>(shares_.size()); }
  // Has threads that a fork did not take along.
  bool in_forked_child() const noexcept;

  // Calls function(context, i) for i in [0, units), each once, and returns when all have returned.
  // One call at a time, and not in a forked child. Allocates nothing.
  using Function = void (*)(void* context, std::uint64_t unit) noexcept;
  void run(std::uint64_t units, Function function, void* context) noexcept;

 private:
  // Of one thread: what of its run nobody has taken. A cache line each.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> next{0};
    std::uint64_t end = 0;
  };
  void run_thread(std::size_t index);
  void work(std::size_t index) noexcept;
  void stop() noexcept;

  const int owner_pid_;
  std::vector<Share> shares_;  // of the caller, then of each own thread
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t round_ = 0;  // counts the calls of run()
  std::size_t working_ = 0;  // own threads that have not ended this round
  bool stop_ = false;
  std::vector<std::thread> own_threads_;
};
}  // namespace headrace::async
