// SPDX-License-Identifier: Apache-2.0
// thread_team.hpp: threads for a call that blocks until its work is done; a WorkerPool for callers
// without a conductor.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace headrace::async {
// `threads` (at least 1) share the work: the caller's and threads - 1 of its own. Each starts with
// its own run of neighbouring units, which is the same for the same count. Then it takes units from
// the runs of others. So a thread mostly works on memory that it touched before.
class ThreadTeam {
 public:
  // kWorkWithFewer: if the machine provides fewer threads, the team works with those.
  enum class WhereRefused { kThrow, kWorkWithFewer };
  struct Options {
    std::string name = "headrace-upd";  // of its own threads, followed by a number
    // CPUs per NUMA node. With two or more nodes, neighbouring threads share a node, in proportion
    // to its CPUs, and the team's own threads stay there. The caller's thread is not bound.
    std::vector<std::vector<int>> nodes = {};
    WhereRefused where_refused = WhereRefused::kThrow;
  };
  // Throws headrace::Error kUnsupported if the machine provides no more threads.
  ThreadTeam(std::uint32_t threads, const Options& options);
  explicit ThreadTeam(std::uint32_t threads) : ThreadTeam(threads, Options()) {}
  // Not for use in a forked child.
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  std::uint32_t threads() const noexcept { return static_cast<std::uint32_t>(shares_.size()); }
  // Whether its threads are missing, since this process was forked.
  bool in_forked_child() const noexcept;

  // Calls function(context, i) once for each i in [0, units), and returns when all calls have
  // returned. One run() at a time, and not in a forked child. Allocates nothing, and does not wait
  // for threads that are still asleep when all units are taken.
  using Function = void (*)(void* context, std::uint64_t unit) noexcept;
  void run(std::uint64_t units, Function function, void* context) noexcept;
  // The same for work(i).
  template <class Work>
  void run(std::uint64_t units, Work& work) noexcept {
    run(
        units, [](void* w, std::uint64_t unit) noexcept { (*static_cast<Work*>(w))(unit); }, &work);
  }

 private:
  // The units of one thread's run that nobody has taken. A cache line each.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> next{0};
    std::uint64_t end = 0;
  };
  void run_thread(std::size_t index);
  void deal(std::uint64_t units) noexcept;
  void work(std::size_t index) noexcept;
  void stop() noexcept;

  const int owner_pid_;
  std::vector<Share> shares_;  // the caller's, then one for each own thread
  // Set with the lock held. Threads that have joined read these two and the shares without it,
  // since run() changes none of them before all threads have left.
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable begun_, left_;
  std::uint64_t round_ = 0;  // the number of calls of run()
  bool open_ = false;        // own threads may join this round, once each
  std::size_t joined_ = 0;   // own threads at work
  bool stop_ = false;
  std::vector<std::thread> own_threads_;
};
}  // namespace headrace::async
