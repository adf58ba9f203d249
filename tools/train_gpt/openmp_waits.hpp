// SPDX-License-Identifier: Apache-2.0
// openmp_waits.hpp: threads of LibTorch that do not spin on CPUs that others want.
//
// libgomp's threads spin for milliseconds before they sleep. That is fastest where each has a CPU
// of its own, also beside this engine's update workers, which need one for short times. Where
// another process has taken the CPU of one of them, the others burn theirs while they wait for it.
// libgomp itself spins 100 turns instead of 300,000 once it has more threads than CPUs (its manual,
// GOMP_SPINCOUNT), so while the calling thread is kept waiting for a CPU, some more threads exist,
// which sleep. LibTorch's own keep their number, so results keep their bits.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace train_gpt {
// Does nothing where OMP_WAIT_POLICY, GOMP_SPINCOUNT, OMP_STACKSIZE or GOMP_STACKSIZE is set,
// address space is limited (ulimit -v), OpenMP is not libgomp, or the kernel does not count what a
// thread waits for its CPU (/proc/<pid>/task/<tid>/schedstat).
//
// Threads: made and ended by the one that computes; another looks at its waits twice a second.
class OpenMpWaits {
 public:
  //   team_threads   of LibTorch
  //   short_seconds  for how long waits were short is added to it; read it when this has ended
  OpenMpWaits(std::uint32_t team_threads, double& short_seconds);
  ~OpenMpWaits();
  OpenMpWaits(const OpenMpWaits&) = delete;
  OpenMpWaits& operator=(const OpenMpWaits&) = delete;

 private:
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

  void watch(const std::string& waiting_file);
  bool shorten();  // false: there is no room for more threads
  void lengthen();
  static void sleep_until_lengthened(void* waits);

  Parallel parallel_ = nullptr;
  unsigned sleepers_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  bool short_ = false;
  double& short_seconds_;
  std::thread holder_;  // of the threads that sleep
  std::thread watcher_;
};
}  // namespace train_gpt
