// SPDX-License-Identifier: Apache-2.0
// crew.hpp: the threads of one sample: each makes its queue; they start and end together.
#pragma once
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bench/sample_thread.hpp"

namespace headrace::tools {
// Called now and then with the bytes that a sample has moved so far; may be empty.
using Shown = std::function<void(std::uint64_t bytes)>;

struct Job {
  SampleThreadOptions thread;
  std::size_t drive = 0;
  std::atomic<std::uint64_t> moved_bytes{0};  // so far
  SampleThreadResult result;
  std::string queue_text, queue_notes;
  std::exception_ptr error;
};

// Calls in this order, from one thread: begin(), watch(), end().
class Crew {
 public:
  // Starts a thread per job, which makes its queue and waits.
  explicit Crew(std::vector<Job>& jobs);
  ~Crew();  // as end()
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Returns once every thread has its queue. If one could not make it, none runs.
  void begin();
  // Returns when the last request of all has completed.
  void watch(const Shown& shown);
  // Lets the threads take their queues down.
  void end();

 private:
  void serve(Job& job);

  std::vector<Job>& jobs_;
  std::barrier<> made_, ended_;
  std::atomic<bool> abandoned_{false};
  bool joined_ = false, begun_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t running_;
  std::vector<std::thread> threads_;
};
}  // namespace headrace::tools
