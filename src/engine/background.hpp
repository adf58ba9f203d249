// SPDX-License-Identifier: Apache-2.0
// background.hpp: the thread of a call that goes on after it has returned: a background save.
#pragma once
#include <atomic>
#include <functional>
#include <thread>

namespace headrace::engine {
// For trainer threads, one at a time, except where noted.
class Background {
 public:
  Background() = default;
  ~Background() { finish(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // While nothing runs. Calls `work`, which throws nothing; from then on nothing runs, and `then`,
  // which uses nothing of the engine, may say so.
  void start(std::function<void()> work, std::function<void()> then);
  bool running() const noexcept { return running_.load(); }  // any thread
  // Whether finish() waits. Any thread.
  bool awaited() const noexcept { return awaited_.load(); }
  // Returns when nothing runs.
  void finish();

 private:
  std::thread thread_;
  std::atomic<bool> running_{false}, awaited_{false};
};
}  // namespace headrace::engine
