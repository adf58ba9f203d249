// SPDX-License-Identifier: Apache-2.0
// parallel_streams_device.hpp: the CPU as a device whose streams run beside each other, each on a
// thread of its own: work that waits for another rank holds up its stream and nothing else, as on a
// GPU. (device_host_late carries all streams on one thread, where nothing may wait.)
#pragma once
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include "support/computing_host.hpp"

namespace headrace::collective {
class ParallelStreamsDevice final : public device::ComputingDevice {
 public:
  ParallelStreamsDevice() { start(0); }
  ~ParallelStreamsDevice() override {
    while (!queues_.empty()) end(queues_.begin()->first);
  }

  const char* name() const noexcept override { return "cpu (parallel streams)"; }
  bool shares_host_memory() const noexcept override { return false; }
  void* allocate(std::size_t size_bytes) noexcept override { return memory_->allocate(size_bytes); }
  void deallocate(void* data, std::size_t size_bytes) noexcept override {
    if (data != nullptr) std::memset(data, device::kPoison, size_bytes);
    memory_->deallocate(data, size_bytes);
  }

  Stream create_stream() override {
    const std::lock_guard lock(mutex_);
    start(++last_stream_);
    return {last_stream_};
  }
  void destroy_stream(Stream stream) noexcept override { end(stream.handle); }

  void copy(Stream stream, void* target, const void* source, std::size_t size_bytes) override {
    launch(stream, [=] {
      if (size_bytes != 0) std::memmove(target, source, size_bytes);
    });
  }
  void fill_zero(Stream stream, void* target, std::size_t size_bytes) override {
    launch(stream, [=] {
      if (size_bytes != 0) std::memset(target, 0, size_bytes);
    });
  }
  void accumulate(Stream stream, const Accumulation& work) override {
    launch(stream, [this, work] { memory_->accumulate({}, work); });
  }
  void notify(Stream stream, void (*function)(void* context) noexcept, void* context) override {
    launch(stream, [=] { function(context); });
  }
  void launch(Stream stream, std::function<void()> kernel) override {
    const std::lock_guard lock(mutex_);
    Queue& queue = *queues_.at(stream.handle);
    queue.kernels.push_back(std::move(kernel));
    ++queue.queued;
    changed_.notify_all();
  }

  Event record(Stream stream) override {
    std::uint64_t id = 0;
    {
      const std::lock_guard lock(mutex_);
      id = ++last_event_;
      to_come_.insert(id);
    }
    launch(stream, [this, id] {
      const std::lock_guard lock(mutex_);
      to_come_.erase(id);
      changed_.notify_all();
    });
    return {id};
  }
  void wait(Stream stream, Event event) override {
    launch(stream, [this, event] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !to_come_.contains(event.id); });
    });
  }
  void synchronize(Stream stream) override {
    std::unique_lock lock(mutex_);
    const Queue& queue = *queues_.at(stream.handle);
    const std::uint64_t until = queue.queued;
    changed_.wait(lock, [&] { return queue.done >= until; });
  }

 private:
  struct Queue {
    std::deque<std::function<void()>> kernels;
    std::uint64_t queued = 0;
    std::uint64_t done = 0;
    bool closing = false;
    std::thread thread;
  };

  void start(std::uintptr_t handle) {
    auto& queue = queues_[handle] = std::make_unique<Queue>();
    queue->thread = std::thread([this, of = queue.get()] { run(*of); });
  }
  void end(std::uintptr_t handle) {
    std::unique_ptr<Queue> queue;
    {
      const std::lock_guard lock(mutex_);
      queue = std::move(queues_.at(handle));
      queues_.erase(handle);
      queue->closing = true;
      changed_.notify_all();
    }
    queue->thread.join();
  }
  void run(Queue& queue) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return queue.closing || !queue.kernels.empty(); });
      if (queue.kernels.empty()) return;
      auto kernel = std::move(queue.kernels.front());
      queue.kernels.pop_front();
      lock.unlock();
      kernel();
      kernel = nullptr;
      lock.lock();
      ++queue.done;
      changed_.notify_all();
    }
  }

  const std::shared_ptr<device::ComputingDevice> memory_ = device::make_computing_host();
  std::mutex mutex_;  // all below
  std::condition_variable changed_;
  std::map<std::uintptr_t, std::unique_ptr<Queue>> queues_;
  std::uintptr_t last_stream_ = 0;
  std::uint64_t last_event_ = 0;
  std::set<std::uint64_t> to_come_;
};
}  // namespace headrace::collective
