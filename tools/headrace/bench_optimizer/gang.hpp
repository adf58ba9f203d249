// SPDX-License-Identifier: Apache-2.0
// gang.hpp: the threads of a pass; they wait between passes.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace::tools {
// One thread at a time calls run(); it is one of those that work.
class Gang {
 public:
  explicit Gang(std::uint32_t most_threads);
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  // Calls work(unit) for each of `units`, each once, on `threads` threads, which take the next one
  // as the engine's do. Returns how long that took, seconds. `work` must not throw.
  double run(std::uint32_t threads, std::uint64_t units,
             const std::function<void(std::uint64_t)>& work);

 private:
  void serve(std::uint32_t index);
  void take_units();
  void end();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(std::uint64_t)>* work_ = nullptr;
  std::uint64_t units_ = 0, pass_ = 0;
  std::uint32_t wanted_ = 0, working_ = 0;  // of those that are not the caller
  bool ending_ = false;
  std::atomic<std::uint64_t> next_{0};
  std::vector<std::thread> threads_;
};
}  // namespace headrace::tools
