// SPDX-License-Identifier: Apache-2.0
// update_load.hpp: threads that update optimizer state in memory, as they do beside the I/O of a
// training step.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace headrace::tools {
class UpdateLoad {
 public:
  // 64 MiB of state per thread, larger than the caches. 0 threads: nothing.
  explicit UpdateLoad(std::uint32_t threads);
  ~UpdateLoad();
  UpdateLoad(const UpdateLoad&) = delete;
  UpdateLoad& operator=(const UpdateLoad&) = delete;

  void start();
  void stop();  // returns once no thread works
  // User and system time of the threads so far.
  double cpu_seconds() const;

 private:
  struct Worker;
  void serve(Worker& worker);

  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> working_{false}, ending_{false};
};
}  // namespace headrace::tools
