// SPDX-License-Identifier: Apache-2.0
// The CPU as a device that takes its time, so that a missing wait fails without a GPU.
//
// One thread carries everything out. It sleeps for a while, then picks among the streams whose next
// operation may run (the seed says how long and which), so streams overtake each other while each
// keeps its own order. An operation that waits for an event was queued after that event's record,
// so the oldest operation queued can always run: streams cannot block each other for good, and the
// destructor drains.
#include "support/computing_host.hpp"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device/device_host.hpp"
#include "device/device_rules.hpp"
#include "device/host_memory.hpp"
#include "kernels/gradient_pass.hpp"
#include "kernels/packing.hpp"

namespace headrace::device {
namespace {
struct Operation {
  enum class Kind { kRun, kRecord, kWait };
  Kind kind = Kind::kRun;
  std::function<void()> run;  // kRun
  std::uint64_t event = 0;    // kRecord, kWait
};

struct Queue {
  std::deque<Operation> operations;  // the front one stays until it is done
  std::uint64_t queued = 0;
  std::uint64_t done = 0;
};

class LateDevice final : public ComputingDevice, public ValuePacking {
 public:
  explicit LateDevice(const HostOptions& options)
      : random_(options.seed), microseconds_max_(options.late_microseconds_max) {
    queues_[0];
    start();
  }
  ~LateDevice() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    work_.notify_one();
    thread_.join();
  }

  const char* name() const noexcept override { return "cpu (late)"; }
  bool shares_host_memory() const noexcept override { return false; }

  void* allocate(std::size_t size_bytes) noexcept override {
    return allocate_host_memory(size_bytes);
  }
  void deallocate(void* data, std::size_t size_bytes) noexcept override {
    if (data != nullptr) std::memset(data, kPoison, size_bytes);
    free_host_memory(data, size_bytes);
  }

  Stream create_stream() override;
  void destroy_stream(Stream stream) noexcept override;

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
    launch(stream, [work] { kernels::accumulate_on_host(work); });
  }
  void notify(Stream stream, void (*function)(void* context) noexcept, void* context) override {
    launch(stream, [=] { function(context); });
  }
  void launch(Stream stream, std::function<void()> kernel) override;
  void pack(Stream stream, const PackWork& work) override {
    launch(stream, [work] { kernels::pack_on_host(work); });
  }
  void unpack(Stream stream, const PackWork& work) override {
    launch(stream, [work] { kernels::unpack_on_host(work); });
  }

  Event record(Stream stream) override;
  void wait(Stream stream, Event event) override;
  void synchronize(Stream stream) override;

 private:
  void start();
  void run() noexcept;
  Queue& find(Stream stream);
  void push(Queue& queue, Operation operation);
  // The stream whose front operation is next, by the seed; null when all are empty. With `mutex_`
  // held.
  Queue* pick();
  void drain(std::unique_lock<std::mutex>& lock, Queue& queue);

  std::mutex mutex_;  // all but the thread's own random_
  std::condition_variable work_;
  std::condition_variable progress_;
  std::map<std::uintptr_t, Queue> queues_;
  std::uintptr_t last_stream_ = 0;
  std::uint64_t last_event_ = 0;
  std::unordered_set<std::uint64_t>
      events_to_come_;  // recorded, and the stream has not passed them
  std::uint64_t operations_queued_ = 0;
  bool closing_ = false;
  std::vector<Queue*> runnable_;
  std::mt19937_64 random_;
  std::uint32_t microseconds_max_;
  std::thread thread_;
};

// The thread belongs to the library: it takes none of the host program's signals.
void LateDevice::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "headrace-dev0");
}

Queue& LateDevice::find(Stream stream) {
  const auto found = queues_.find(stream.handle);
  if (found == queues_.end()) throw_unknown_stream(stream);
  return found->second;
}

void LateDevice::push(Queue& queue, Operation operation) {
  queue.operations.push_back(std::move(operation));
  ++queue.queued;
  ++operations_queued_;
  work_.notify_one();
}

Stream LateDevice::create_stream() {
  const std::lock_guard lock(mutex_);
  queues_[++last_stream_];
  return {last_stream_};
}

void LateDevice::destroy_stream(Stream stream) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = queues_.find(stream.handle);
  if (stream.handle == 0 || found == queues_.end()) return;
  drain(lock, found->second);
  queues_.erase(stream.handle);
}

void LateDevice::launch(Stream stream, std::function<void()> kernel) {
  const std::lock_guard lock(mutex_);
  push(find(stream), {.kind = Operation::Kind::kRun, .run = std::move(kernel), .event = 0});
}

Event LateDevice::record(Stream stream) {
  const std::lock_guard lock(mutex_);
  Queue& queue = find(stream);
  events_to_come_.insert(++last_event_);
  push(queue, {.kind = Operation::Kind::kRecord, .run = {}, .event = last_event_});
  return {last_event_};
}

void LateDevice::wait(Stream stream, Event event) {
  const std::lock_guard lock(mutex_);
  Queue& queue = find(stream);
  if (event.id == 0 || event.id > last_event_) throw_unrecorded_event(event, last_event_);
  push(queue, {.kind = Operation::Kind::kWait, .run = {}, .event = event.id});
}

void LateDevice::synchronize(Stream stream) {
  std::unique_lock lock(mutex_);
  drain(lock, find(stream));
}

void LateDevice::drain(std::unique_lock<std::mutex>& lock, Queue& queue) {
  const std::uint64_t until = queue.queued;
  progress_.wait(lock, [&] { return queue.done >= until; });
}

Queue* LateDevice::pick() {
  runnable_.clear();
  for (auto& [handle, queue] : queues_) {
    if (queue.operations.empty()) continue;
    const Operation& front = queue.operations.front();
    const bool blocked =
        front.kind == Operation::Kind::kWait && events_to_come_.contains(front.event);
    if (!blocked) runnable_.push_back(&queue);
  }
  return runnable_.empty() ? nullptr : runnable_[random_() % runnable_.size()];
}

void LateDevice::run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return closing_ || operations_queued_ != 0; });
    if (operations_queued_ == 0) return;
    lock.unlock();
    // Half of the operations are not delayed, so that a long test does not spend its time asleep.
    const std::uint64_t draw = random_();
    if (draw % 2 == 0 && microseconds_max_ != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(draw / 2 % (microseconds_max_ + 1ull)));
    }
    lock.lock();
    Queue* queue = pick();
    Operation operation = std::move(queue->operations.front());
    if (operation.kind == Operation::Kind::kRecord) events_to_come_.erase(operation.event);
    if (operation.kind == Operation::Kind::kRun) {
      lock.unlock();
      operation.run();
      operation.run = nullptr;  // what it holds goes before synchronize() returns
      lock.lock();
    }
    queue->operations.pop_front();
    ++queue->done;
    --operations_queued_;
    progress_.notify_all();
  }
}
}  // namespace

std::shared_ptr<ComputingDevice> make_computing_host(const HostOptions& options) {
  if (options.flavour == HostFlavour::kLate) return std::make_shared<LateDevice>(options);
  const std::shared_ptr<Device> host = make_device_host();
  return std::make_shared<DeviceWithLaunch>(
      host, [host](Stream stream, const std::function<void()>& kernel) {
        host->synchronize(stream);
        kernel();
      });
}
}  // namespace headrace::device
