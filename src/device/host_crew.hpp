// SPDX-License-Identifier: Apache-2.0
// host_crew.hpp: a few threads that do one thing together.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace::device {
// `threads` share the work: the caller of run() and threads - 1 of its own.
class HostCrew {
 public:
  explicit HostCrew(std::uint32_t threads);
  ~HostCrew();
  HostCrew(const HostCrew&) = delete;
  HostCrew& operator=(const HostCrew&) = delete;

  // Calls work(i) for i in [0, units), each once, in any order; returns when all are done. One run
  // at a time. `work` must not throw.
  void run(std::uint64_t units, const std::function<void(std::uint64_t)>& work);

 private:
  void take_units(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // the rest
  std::condition_variable work_there_, all_done_;
  const std::function<void(std::uint64_t)>* work_ = nullptr;
  std::uint64_t next_ = 0, units_ = 0, under_way_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};
}  // namespace headrace::device
