// SPDX-License-Identifier: Apache-2.0
#include "device/simulated_queues.hpp"

#include <chrono>
#include <utility>

#include "async/thread.hpp"

namespace headrace::device::simulated_cuda {
Queues::Queues(const QueueOptions& options)
    : options_(options),
      streams_made_(static_cast<std::size_t>(options.gpus)),
      random_(options.seed) {
  for (int gpu = 0; gpu < options.gpus; ++gpu) add_stream(static_cast<std::uintptr_t>(gpu), gpu);
  gpus_ = async::start_thread("simulated-gpu", [this] { be_the_gpus(); });
  host_ = async::start_thread("simulated-host", [this] { be_the_host(); });
}

Queues::~Queues() {
  {
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [&] { return operations_ == 0; });
    closing_ = true;
  }
  queued_.notify_all();
  handed_to_host_.notify_all();
  gpus_.join();
  host_.join();
}

// In turn, as they are made.
void Queues::add_stream(std::uintptr_t stream, int gpu) {
  const auto of_gpu = static_cast<std::size_t>(gpu);
  std::uintptr_t queue = stream;
  if (options_.hardware_queues != 0) {
    queue = of_gpu * options_.hardware_queues + streams_made_[of_gpu] % options_.hardware_queues;
  }
  ++streams_made_[of_gpu];
  streams_[stream] = {.gpu = gpu, .queue = &queues_[queue]};
}

std::uintptr_t Queues::create_stream(int gpu) {
  const std::lock_guard lock(mutex_);
  add_stream(++last_stream_, gpu);
  return last_stream_;
}

void Queues::destroy_stream(std::uintptr_t stream) {
  std::unique_lock lock(mutex_);
  drain(lock, stream);
  streams_.erase(stream);
  if (options_.hardware_queues == 0) queues_.erase(stream);
}

int Queues::gpu_of(std::uintptr_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() ? -1 : found->second.gpu;
}

void Queues::push(Operation operation) {
  Stream& stream = streams_.at(operation.stream);
  ++stream.queued;
  ++operations_;
  stream.queue->push_back(std::move(operation));
  queued_.notify_one();
}

void Queues::run(std::uintptr_t stream, By by, std::function<void()> work) {
  const auto kind = by == By::kHost ? Operation::Kind::kRunOnHost : Operation::Kind::kRun;
  const std::lock_guard lock(mutex_);
  push({.kind = kind, .stream = stream, .work = std::move(work), .point = {}});
}

Point Queues::record(std::uintptr_t stream) {
  auto point = std::make_shared<std::atomic<bool>>(false);
  const std::lock_guard lock(mutex_);
  push({.kind = Operation::Kind::kRecord, .stream = stream, .work = {}, .point = point});
  return point;
}

void Queues::wait(std::uintptr_t stream, Point point) {
  const std::lock_guard lock(mutex_);
  push({.kind = Operation::Kind::kWait, .stream = stream, .work = {}, .point = std::move(point)});
}

void Queues::drain(std::unique_lock<std::mutex>& lock, std::uintptr_t stream) {
  const Stream& of = streams_.at(stream);
  const std::uint64_t until = of.queued;
  progress_.wait(lock, [&] { return of.done >= until; });
}

void Queues::synchronize(std::uintptr_t stream) {
  std::unique_lock lock(mutex_);
  drain(lock, stream);
}

void Queues::synchronize(const Point& point) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return point->load(); });
}

void Queues::synchronize_gpu(int gpu) {
  std::unique_lock lock(mutex_);
  std::map<std::uintptr_t, std::uint64_t> until;
  for (const auto& [handle, stream] : streams_) {
    if (stream.gpu == gpu) until[handle] = stream.queued;
  }
  for (const auto& [handle, queued] : until) {
    progress_.wait(lock, [&] {
      const auto stream = streams_.find(handle);  // may be destroyed meanwhile
      return stream == streams_.end() || stream->second.done >= queued;
    });
  }
}

void Queues::find_runnable() {
  runnable_.clear();
  for (auto& [number, queue] : queues_) {
    if (queue.empty()) continue;
    const Operation& front = queue.front();
    const bool waits = front.kind == Operation::Kind::kWait && !front.point->load();
    if (!waits && !front.handed_to_host) runnable_.push_back(&queue);
  }
}

void Queues::finish(Queue& queue) {
  ++streams_.at(queue.front().stream).done;
  queue.pop_front();
  --operations_;
  progress_.notify_all();
}

// Half of the operations are not delayed, so that a long test does not spend its time asleep.
void Queues::sleep_for_a_while() {
  const std::uint64_t draw = random_();
  if (draw % 2 == 0 && options_.late_microseconds_max != 0) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(draw / 2 % (options_.late_microseconds_max + 1ull)));
  }
}

void Queues::be_the_gpus() {
  std::unique_lock lock(mutex_);
  for (;;) {
    queued_.wait(lock, [&] {
      find_runnable();
      return closing_ || !runnable_.empty();
    });
    if (runnable_.empty()) return;
    lock.unlock();
    sleep_for_a_while();
    lock.lock();
    find_runnable();
    Queue& queue = *runnable_[random_() % runnable_.size()];
    Operation& operation = queue.front();
    if (operation.kind == Operation::Kind::kRunOnHost) {
      operation.handed_to_host = true;
      for_host_.push_back(&queue);
      handed_to_host_.notify_one();
      continue;
    }
    if (operation.kind == Operation::Kind::kRun) {
      lock.unlock();
      operation.work();
      operation.work = nullptr;  // what it holds goes before synchronize() returns
      lock.lock();
    }
    if (operation.kind == Operation::Kind::kRecord) operation.point->store(true);
    finish(queue);
  }
}

void Queues::be_the_host() {
  std::unique_lock lock(mutex_);
  for (;;) {
    handed_to_host_.wait(lock, [&] { return closing_ || !for_host_.empty(); });
    if (for_host_.empty()) return;
    Queue& queue = *for_host_.front();
    for_host_.pop_front();
    Operation& operation = queue.front();
    lock.unlock();
    operation.work();
    operation.work = nullptr;
    lock.lock();
    finish(queue);
    queued_.notify_one();
  }
}
}  // namespace headrace::device::simulated_cuda
