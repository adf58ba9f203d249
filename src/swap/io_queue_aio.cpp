// SPDX-License-Identifier: Apache-2.0
// The queue of Linux's older asynchronous I/O, by its system calls (no library): for where io_uring
// is forbidden, as containers do. It is asynchronous with O_DIRECT alone; elsewhere io_submit()
// moves the bytes itself.
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/syscall.h>
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

long io_setup(unsigned entries, aio_context_t* context) noexcept {
  return ::syscall(SYS_io_setup, entries, context);
}
long io_destroy(aio_context_t context) noexcept { return ::syscall(SYS_io_destroy, context); }
long io_submit(aio_context_t context, long count, iocb** blocks) noexcept {
  return ::syscall(SYS_io_submit, context, count, blocks);
}
long io_getevents(aio_context_t context, long at_least, long at_most, io_event* events,
                  timespec* timeout) noexcept {
  return ::syscall(SYS_io_getevents, context, at_least, at_most, events, timeout);
}

class AioQueue final : public KernelQueue {
 public:
  explicit AioQueue(const IoQueueOptions& options)
      : KernelQueue(options, aio_refused),
        batch_(std::clamp<std::size_t>(options.submit_batch, 1, kBlocksPerSubmit)) {
    if (io_setup(depth() + 1, &context_) != 0)
      throw aio_refused("io_setup", errno);              // + the wake-up
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
      const long taken = io_submit(context_, static_cast<long>(count), table.data());
      if (taken < 0 && errno == EINTR) continue;
      if (taken < 0 && errno == EAGAIN) return EAGAIN;
      if (taken == 0) return EAGAIN;
      if (taken <
          0) {  // the first one was refused: that is its result, the others are looked at anew
        IoRequest& refused = *submitted_.pop();
        refused.result = -std::int64_t{errno};
        refused_.push(refused);
      }
      for (long i = 0; i < taken; ++i) submitted_.pop();  // the kernel's, until reaped
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
    iocb block{};
    block.aio_data = reinterpret_cast<std::uintptr_t>(&request);
    block.aio_lio_opcode = request.kind == IoKind::kRead ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
    block.aio_fildes = static_cast<std::uint32_t>(request.fd);
    block.aio_buf = reinterpret_cast<std::uintptr_t>(request.data);
    block.aio_nbytes = request.size_bytes;
    block.aio_offset = static_cast<std::int64_t>(request.offset_bytes);
    return block;
  }

  // A poll of the eventfd among the requests; its completion carries none. Returns 0 or an errno.
  int arm_wake() noexcept {
    if (wake_armed_) return 0;
    iocb block{};
    block.aio_lio_opcode = IOCB_CMD_POLL;
    block.aio_fildes = static_cast<std::uint32_t>(wake_fd());
    block.aio_buf = POLLIN;
    iocb* table = &block;
    if (io_submit(context_, 1, &table) != 1) return errno;
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
      const long taken =
          io_getevents(context_, waits ? 1 : 0, static_cast<long>(wanted), events.data(), &limit);
      if (taken < 0 && errno != EINTR && waits) pause();  // refused in mid-run: do not spin
      for (long i = 0; i < taken; ++i) {
        auto* const request =
            reinterpret_cast<IoRequest*>(static_cast<std::uintptr_t>(events[i].data));
        if (request == nullptr) {
          take_wake();
          continue;
        }
        request->result = events[i].res;
        done[count++] = request;
      }
      if (taken < static_cast<long>(wanted)) break;  // also EINTR: the caller looks at the time
      patience = nanoseconds::zero();
    }
    leave_flight(count);
    return count;
  }

  std::size_t batch_;
  aio_context_t context_ = 0;
  base::IntrusiveQueue<&IoRequest::next> refused_;  // by io_submit, with their results
};
}  // namespace

std::unique_ptr<IoQueue> make_io_queue_aio(const IoQueueOptions& options) {
  return std::make_unique<AioQueue>(options);
}
}  // namespace headrace::swap
