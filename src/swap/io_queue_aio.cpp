// SPDX-License-Identifier: Apache-2.0
// The queue of Linux's older asynchronous I/O, by libaio: for where io_uring is forbidden, as
// containers do. It is asynchronous with O_DIRECT alone; elsewhere io_submit() moves the bytes
// itself.
//
// libaio's functions return -errno and leave errno as it was. Its io_getevents() looks at the
// completion ring that the kernel has mapped here: asked not to wait, it says without a system call
// that nothing has completed.
#include <libaio.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "swap/kernel_queue.hpp"

namespace headrace::swap {
namespace {
using std::chrono::nanoseconds;

constexpr std::size_t kBlocksPerSubmit = 16, kEventsPerReap = 32;

// The result of a request, from the kernel's answer. Some sandboxes and file systems refuse the
// command to sync. That is not a failed sync: nothing has reached the drive, so fdatasync() does it
// here, and blocks the calling thread.
std::int64_t result_of(const IoRequest& request, std::int64_t answer) noexcept {
  const bool refused = answer == -EINVAL || answer == -ENOSYS || answer == -EOPNOTSUPP;
  if (request.kind != IoKind::kSync || !refused) return answer;
  return ::fdatasync(request.fd) == 0 ? 0 : -std::int64_t{errno};
}

class AioQueue final : public KernelQueue {
 public:
  explicit AioQueue(const IoQueueOptions& options)
      : KernelQueue(options, aio_refused),
        batch_(std::clamp<std::size_t>(options.submit_batch, 1, kBlocksPerSubmit)) {
    const int made = io_setup(static_cast<int>(depth() + 1), &context_);  // + the wake-up
    if (made != 0) throw aio_refused("io_setup", -made);
    if (const int refused = arm_wake(); refused != 0) {  // from Linux 4.18 on
      io_destroy(context_);
      throw aio_refused("io_submit of a poll", refused);
    }
  }
  ~AioQueue() override { io_destroy(context_); }

  const char* name() const noexcept override { return "aio"; }

  int flush() noexcept override {
    while (!submitted_.empty()) {
      std::array<iocb, kBlocksPerSubmit> blocks;
      std::array<iocb*, kBlocksPerSubmit> table;
      std::size_t count = 0;
      for (IoRequest* request = submitted_.front(); request != nullptr && count < batch_;
           request = request->next) {
        blocks[count] = to_block(*request);
        table[count] = &blocks[count];
        ++count;
      }
      const int taken = io_submit(context_, static_cast<long>(count), table.data());
      if (taken == -EINTR) continue;
      if (taken == -EAGAIN || taken == 0) return EAGAIN;
      // The first one was refused: that is its result, the others are looked at anew.
      if (taken < 0) {
        IoRequest& refused = *submitted_.pop();
        refused.result = result_of(refused, taken);
        refused_.push(refused);
      }
      for (int i = 0; i < taken; ++i) submitted_.pop();  // the kernel's, until reaped
    }
    return 0;
  }

  std::size_t reap(std::span<IoRequest*> done, nanoseconds timeout) noexcept override {
    std::size_t count = take_completed(done, nanoseconds::zero());
    if (count > 0 || done.empty() || timeout <= nanoseconds::zero()) return count;
    const Clock::time_point until = Clock::now() + std::min<nanoseconds>(timeout, kLongestWait);
    while (!std::exchange(woken_, false)) {
      const nanoseconds left = until - Clock::now();
      if (left <= nanoseconds::zero()) return 0;
      if (arm_wake() != 0) return pause();
      count = take_completed(done, left);
      if (count > 0) {
        woken_ = false;
        return count;
      }
    }
    return 0;
  }

 private:
  static iocb to_block(IoRequest& request) noexcept {
    iocb block;
    if (request.kind == IoKind::kSync) {
      io_prep_fdsync(&block, request.fd);
    } else {
      const auto prepare = request.kind == IoKind::kRead ? io_prep_pread : io_prep_pwrite;
      prepare(&block, request.fd, request.data, request.size_bytes,
              static_cast<long long>(request.offset_bytes));
    }
    block.data = &request;
    return block;
  }

  // A poll of the eventfd among the requests; its completion carries none. Returns 0 or an errno.
  int arm_wake() noexcept {
    if (wake_armed_) return 0;
    iocb block;
    io_prep_poll(&block, wake_fd(), POLLIN);
    iocb* table = &block;
    const int taken = io_submit(context_, 1, &table);
    if (taken != 1) return taken < 0 ? -taken : EAGAIN;
    wake_armed_ = true;
    return 0;
  }

  // Waits up to `patience` for the first.
  std::size_t take_completed(std::span<IoRequest*> done, nanoseconds patience) noexcept {
    std::size_t count = 0;
    while (count < done.size() && !refused_.empty()) done[count++] = refused_.pop();
    std::array<io_event, kEventsPerReap> events;
    while (count < done.size()) {
      const std::size_t wanted = std::min(events.size(), done.size() - count);
      const bool waits = count == 0 && patience > nanoseconds::zero();
      timespec limit{};
      if (waits) {
        limit.tv_sec = patience.count() / 1'000'000'000;
        limit.tv_nsec = patience.count() % 1'000'000'000;
      }
      const int taken =
          io_getevents(context_, waits ? 1 : 0, static_cast<long>(wanted), events.data(), &limit);
      if (taken < 0 && taken != -EINTR && waits) pause();  // refused in mid-run: do not spin
      for (int i = 0; i < taken; ++i) {
        auto* const request = static_cast<IoRequest*>(events[i].data);
        if (request == nullptr) {
          take_wake();
          continue;
        }
        request->result = result_of(*request, static_cast<std::int64_t>(events[i].res));
        done[count++] = request;
      }
      if (taken < static_cast<int>(wanted)) break;  // also EINTR: the caller looks at the time
      patience = nanoseconds::zero();
    }
    leave_flight(count);
    return count;
  }

  std::size_t batch_;
  io_context_t context_ = nullptr;
  base::IntrusiveQueue<&IoRequest::next> refused_;  // by io_submit, with their results
};
}  // namespace

bool built_with_libaio() noexcept { return true; }

std::unique_ptr<IoQueue> make_io_queue_aio(const IoQueueOptions& options) {
  return std::make_unique<AioQueue>(options);
}
}  // namespace headrace::swap
