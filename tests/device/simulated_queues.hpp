// SPDX-License-Identifier: Apache-2.0
// simulated_queues.hpp: in what order the simulated GPUs do what was queued.
//
// One thread is all GPUs. It sleeps for a while, then picks among the hardware's queues whose front
// operation may run (the seed says how long and which), so streams overtake each other while each
// keeps its own order. With fewer hardware queues than streams, as on a real GPU, several streams
// share one: what waits at its front then holds up streams that it has nothing to do with.
//
// The host's functions run on one more thread, as CUDA's driver has it: one that takes long holds
// up the streams behind it and all other host functions, and not the GPU.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace headrace::device::simulated_cuda {
struct QueueOptions {
  std::uint64_t seed = 1;
  std::uint32_t late_microseconds_max = 100;
  std::uint32_t hardware_queues = 0;  // of each GPU; 0: one for each stream
  int gpus = 1;
};
// A point in a stream: true once the GPU has passed it.
using Point = std::shared_ptr<std::atomic<bool>>;

// Stream g is the default one of GPU g. Threads: any.
class Queues {
 public:
  enum class By { kGpu, kHost };
  explicit Queues(const QueueOptions& options);
  // Returns when all is done.
  ~Queues();

  std::uintptr_t create_stream(int gpu);
  // Returns when all that is queued there is done.
  void destroy_stream(std::uintptr_t stream);
  // -1 for what is no stream. All else must be one.
  int gpu_of(std::uintptr_t stream);

  void run(std::uintptr_t stream, By by, std::function<void()> work);
  Point record(std::uintptr_t stream);
  // The point was recorded before, so the oldest operation can always run: whatever shares a queue,
  // streams cannot block each other for good.
  void wait(std::uintptr_t stream, Point point);

  void synchronize(std::uintptr_t stream);
  void synchronize_gpu(int gpu);
  void synchronize(const Point& point);

 private:
  struct Operation {
    enum class Kind { kRun, kRunOnHost, kRecord, kWait };
    Kind kind = Kind::kRun;
    std::uintptr_t stream = 0;
    std::function<void()> work;
    Point point;
    bool handed_to_host = false;
  };
  using Queue = std::deque<Operation>;  // the front one stays until it is done
  struct Stream {
    int gpu = 0;
    Queue* queue = nullptr;
    std::uint64_t queued = 0, done = 0;
  };
  // With mutex_ held:
  void add_stream(std::uintptr_t stream, int gpu);
  void push(Operation operation);
  void find_runnable();
  void finish(Queue& queue);
  void drain(std::unique_lock<std::mutex>& lock, std::uintptr_t stream);

  void be_the_gpus();
  void sleep_for_a_while();
  void be_the_host();

  const QueueOptions options_;
  std::mutex mutex_;  // all but the GPUs' own random_
  std::condition_variable queued_, handed_to_host_, progress_;
  std::map<std::uintptr_t, Queue> queues_;
  std::map<std::uintptr_t, Stream> streams_;
  std::vector<std::uint64_t> streams_made_;  // of each GPU
  std::uintptr_t last_stream_ = 0x100;       // CUDA's own handles are below
  std::uint64_t operations_ = 0;
  std::deque<Queue*> for_host_;
  bool closing_ = false;
  std::vector<Queue*> runnable_;
  std::mt19937_64 random_;
  std::thread gpus_, host_;
};
}  // namespace headrace::device::simulated_cuda
