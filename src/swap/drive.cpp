// SPDX-License-Identifier: Apache-2.0
// The drive's thread: its start and end, and the way in for transfers. Its rounds are drive_loop's.
#include "swap/drive.hpp"

#include <atomic>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "async/thread.hpp"
#include "base/check.hpp"
#include "base/intrusive_list.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "swap/drive_loop.hpp"
#include "swap/kernel_side.hpp"
#include "swap/never_freed.hpp"

namespace headrace::swap {
namespace {
// Transfers on their way to the thread. Any thread puts them in, without a lock.
class Inbox {
 public:
  // True if the inbox was empty: the caller then wakes the thread. Otherwise, the one that put the
  // first transfer in wakes it.
  bool put(Transfer& transfer) noexcept {
    Transfer* before = last_.load(std::memory_order_relaxed);
    do {
      transfer.next_transfer = before;
    } while (!last_.compare_exchange_weak(before, &transfer, std::memory_order_release,
                                          std::memory_order_relaxed));
    return before == nullptr;
  }

  // give(transfer) for each, in the order they came.
  template <class Give>
  void empty(Give give) noexcept {
    base::IntrusiveStack<&Transfer::next_transfer> in_order;
    for (Transfer* transfer = last_.exchange(nullptr, std::memory_order_acquire);
         transfer != nullptr;) {
      Transfer* const before = transfer->next_transfer;
      in_order.push(*transfer);
      transfer = before;
    }
    while (Transfer* const transfer = in_order.pop()) give(*transfer);
  }

 private:
  std::atomic<Transfer*> last_{nullptr};
};

class DriveThread final : public Drive {
 public:
  DriveThread(async::Executor& ends, DriveOptions options);
  ~DriveThread() override;

  void start(Transfer& transfer) noexcept override;
  DriveCounters counters() const noexcept override { return loop_->counters(); }
  const char* queue_name() const noexcept override { return kernel_->queue_name().c_str(); }
  const std::string& queue_reason() const noexcept override { return kernel_->queue_reason(); }
  Registered registered() const override { return kernel_->registered(); }
  bool stalled() const noexcept override { return loop_->stalled(); }

 private:
  void run() noexcept;

  const DriveOptions options_;
  // Made by the thread, and there from the constructor on.
  std::unique_ptr<KernelSide> kernel_;
  std::unique_ptr<DriveLoop> loop_;
  Inbox inbox_;
  std::mutex stop_mutex_;  // the queue does not go while the destructor wakes it
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

DriveThread::DriveThread(async::Executor& ends, DriveOptions options)
    : options_(std::move(options)) {
  HEADRACE_CHECK(options_.io_block_bytes > 0 && options_.io_block_bytes % base::kIoAlignment == 0 &&
                     options_.io_block_bytes <= base::kGiB,
                 "an I/O block is made of whole pages and at most 1 GiB");
  // Shared: the thread is still inside set_value() when get() returns.
  const auto ready = std::make_shared<std::promise<void>>();
  thread_ = async::start_thread("headrace-io" + std::to_string(options_.index % 1000),
                                [this, ready, &ends] {
                                  try {
                                    kernel_ = std::make_unique<KernelSide>(options_);
                                    loop_ = std::make_unique<DriveLoop>(ends, options_, *kernel_);
                                  } catch (...) {
                                    kernel_.reset();  // by the thread that made the queue
                                    ready->set_exception(std::current_exception());
                                    return;
                                  }
                                  ready->set_value();
                                  run();
                                });
  try {
    ready->get_future().get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

DriveThread::~DriveThread() {
  {
    const std::lock_guard lock(stop_mutex_);
    stopping_.store(true);
    kernel_->queue().wake();
  }
  thread_.join();
}

void DriveThread::run() noexcept {
  while (true) {
    const bool stopping = stopping_.load();  // before the inbox: nothing is started after it
    inbox_.empty([this](Transfer& transfer) { loop_->add(transfer); });
    loop_->begin();
    if (stopping && loop_->idle()) break;
    loop_->finish();
  }
  const std::lock_guard lock(stop_mutex_);
  if (loop_->abandoned() == 0) return kernel_.reset();
  base::sink_or_stderr(options_.log)(
      LogLevel::kWarning,
      "swap drive " + std::to_string(options_.index) + " (" + options_.path +
          "): " + std::to_string(loop_->abandoned()) +
          " requests never completed; their queue is left behind on purpose, because "
          "the kernel may still use it");
  never_free(std::move(kernel_));
}

void DriveThread::start(Transfer& transfer) noexcept {
  HEADRACE_CHECK(transfer.fd >= 0 ||
                     (transfer.offset_bytes % base::kIoAlignment == 0 &&
                      transfer.size_bytes % base::kIoAlignment == 0 &&
                      reinterpret_cast<std::uintptr_t>(transfer.data) % base::kIoAlignment == 0),
                 "a transfer's memory, offset and size are made of whole pages");
  HEADRACE_CHECK(transfer.kind != IoKind::kSync || transfer.size_bytes == 0,
                 "a sync moves no bytes");
  transfer.done_bytes = 0;
  transfer.error = 0;
  if (inbox_.put(transfer)) kernel_->queue().wake();
}
}  // namespace

std::unique_ptr<Drive> make_drive_thread(async::Executor& ends, DriveOptions options) {
  return std::make_unique<DriveThread>(ends, std::move(options));
}
}  // namespace headrace::swap
