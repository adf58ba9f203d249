// SPDX-License-Identifier: Apache-2.0
// thread_team.hpp: threads for a call that blocks until its work is done: what WorkerPool is where
// there is no conductor.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace headrace::async {
// `threads` (at least 1) share the work: the caller's and threads - 1 of its own. Each begins with
// a run of neighbouring units of its own, the same for the same count, and takes from the others'
// when it is done: what a thread touched first it meets again.
class ThreadTeam {
 public:
  // kWorkWithFewer: where the machine gives no more threads, those that it gave do.
  enum class WhereRefused { kThrow, kWorkWithFewer };
  struct Options {
    std::string name = "headrace-upd";  // of its own threads, with a number
    // CPUs per NUMA node. With two or more, neighbouring threads share a node, as many as its part
    // of the CPUs, and its own stay there; the caller's goes where it goes.
    std::vector<std::vector<int>> nodes = {};
    WhereRefused where_refused = WhereRefused::kThrow;
  };
  // Throws headrace::Error kUnsupported when the machine gives no more threads.
  ThreadTeam(std::uint32_t threads, const Options& options);
  explicit ThreadTeam(std::uint32_t threads) : ThreadTeam(threads, Options()) {}
  // Not in a forked child.
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  std::uint32_t threads() const noexcept { return static_cast<std::uint32_t>(shares_.size()); }
  // Has threads that a fork did not take along.
  bool in_forked_child() const noexcept;

  // Calls function(context, i) for i in [0, units), each once, and returns when all have returned.
  // One call at a time, and not in a forked child. Allocates nothing, and waits for no thread that
  // has not woken by the time all units are taken.
  using Function = void (*)(void* context, std::uint64_t unit) noexcept;
  void run(std::uint64_t units, Function function, void* context) noexcept;
  // The same for work(i).
  template <class Work>
  void run(std::uint64_t units, Work& work) noexcept {
    run(
        units, [](void* w, std::uint64_t unit) noexcept { (*static_cast<Work*>(w))(unit); }, &work);
  }

 private:
  // Of one thread: what of its run nobody has taken. A cache line each.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> next{0};
    std::uint64_t end = 0;
  };
  void run_thread(std::size_t index);
  void deal(std::uint64_t units) noexcept;
  void work(std::size_t index) noexcept;
  void stop() noexcept;

  const int owner_pid_;
  std::vector<Share> shares_;  // of the caller, then of each own thread
  // Set with the lock held. Threads that have joined read these two and the shares without it:
  // run() returns, and so changes none of them, when all have left.
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable begun_, left_;
  std::uint64_t round_ = 0;  // counts the calls of run()
  bool open_ = false;        // own threads may join this round, each once
  std::size_t joined_ = 0;   // own threads at work
  bool stop_ = false;
  std::vector<std::thread> own_threads_;
};
}  // namespace headrace::async
