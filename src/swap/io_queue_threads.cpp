// SPDX-License-Identifier: Apache-2.0
// The thread queue: `depth` threads, each doing one pread, pwrite or fdatasync at a time. Works
// wherever files do.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "async/thread.hpp"
#include "base/check.hpp"
#include "base/intrusive_list.hpp"
#include "swap/io_queue.hpp"

namespace headrace::swap {
namespace {
using std::chrono::nanoseconds;

ssize_t moved_by(const IoRequest& request) noexcept {
  const auto offset = static_cast<off_t>(request.offset_bytes);
  switch (request.kind) {
    case IoKind::kRead:
      return ::pread(request.fd, request.data, request.size_bytes, offset);
    case IoKind::kWrite:
      return ::pwrite(request.fd, request.data, request.size_bytes, offset);
    case IoKind::kSync:
      return ::fdatasync(request.fd);
  }
  errno = EINVAL;
  return -1;
}

std::int64_t transfer(const IoRequest& request) noexcept {
  const ssize_t moved = moved_by(request);
  return moved < 0 ? -std::int64_t{errno} : moved;
}

class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(const IoQueueOptions& options) : depth_(std::max(1u, options.depth)) {
    threads_.reserve(depth_);
    try {
      for (std::uint32_t i = 0; i < depth_; ++i) {
        threads_.push_back(
            async::start_thread("headrace-pio" + std::to_string(i % 1000), [this] { serve(); }));
      }
    } catch (...) {
      join();
      throw;
    }
  }
  ~ThreadQueue() override {
    HEADRACE_CHECK(in_flight_ == 0, "an I/O queue was destroyed with requests in flight");
    join();
  }

  const char* name() const noexcept override { return "threads"; }
  std::uint32_t depth() const noexcept override { return depth_; }
  std::uint32_t in_flight() const noexcept override { return in_flight_; }

  bool submit(IoRequest& request) noexcept override {
    if (in_flight_ == depth_) return false;
    ++in_flight_;
    {
      const std::lock_guard lock(mutex_);
      submitted_.push(request);
    }
    work_.notify_one();
    return true;
  }
  int flush() noexcept override { return 0; }

  std::size_t reap(std::span<IoRequest*> done, nanoseconds timeout) noexcept override {
    std::unique_lock lock(mutex_);
    if (timeout > nanoseconds::zero() && !done.empty()) {
      const auto until =
          std::chrono::steady_clock::now() + std::min<nanoseconds>(timeout, kLongestWait);
      ready_.wait_until(lock, until, [this] { return !completed_.empty() || woken_; });
      woken_ = false;
    }
    std::size_t count = 0;
    while (count < done.size() && !completed_.empty()) done[count++] = completed_.pop();
    in_flight_ -= static_cast<std::uint32_t>(count);
    return count;
  }

  void wake() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_one();
  }

 private:
  void serve() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return !submitted_.empty() || stopping_; });
      IoRequest* const request = submitted_.pop();
      if (request == nullptr) return;
      lock.unlock();
      const std::int64_t result = transfer(*request);
      lock.lock();
      request->result = result;
      completed_.push(*request);
      ready_.notify_one();
    }
  }

  void join() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::uint32_t depth_;
  std::uint32_t in_flight_ = 0;  // the owner's thread only
  std::mutex mutex_;             // guards what follows
  std::condition_variable work_, ready_;
  base::IntrusiveQueue<&IoRequest::next> submitted_, completed_;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};
}  // namespace

std::unique_ptr<IoQueue> make_io_queue_threads(const IoQueueOptions& options) {
  return std::make_unique<ThreadQueue>(options);
}
}  // namespace headrace::swap
