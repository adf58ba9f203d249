// SPDX-License-Identifier: Apache-2.0
// The io_uring queue. One thread owns the ring; an eventfd polled by the ring lets others wake it.
//
// Requests wait in a list until flush(), which hands them to the kernel a few at a time: three or
// more in one io_uring_enter get merged by the block layer into larger, slower ones.
#include <liburing.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "swap/kernel_queue.hpp"
#include "swap/run_lock.hpp"

namespace headrace::swap {
namespace {
using std::chrono::nanoseconds;

// The kernel takes no larger piece of memory in one table entry.
constexpr std::size_t kLargestRegistered = base::kGiB;
constexpr std::size_t kPeekBatch = 32;

__kernel_timespec to_timespec(nanoseconds duration) {
  return {duration.count() / 1'000'000'000, duration.count() % 1'000'000'000};
}

// The ring with the best flags this kernel takes: each step only leaves some out. A forked child
// does not have its memory: while that is mapped, the ring lives on, and with it the files that are
// registered there, and their locks.
io_uring open_ring(unsigned entries) {
  constexpr unsigned kDeferred = IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
                                 IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  constexpr unsigned kSingle = IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
                               IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  constexpr unsigned kShared = IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN;
  int refused = EINVAL;
  for (const unsigned flags : {kDeferred, kSingle, kShared, 0u}) {
    io_uring ring{};
    io_uring_params params{};
    params.flags = flags;
    const int result = io_uring_queue_init_params(entries, &ring, &params);
    refused = result == 0 ? -io_uring_ring_dontfork(&ring) : -result;
    if (refused == 0) return ring;
    if (result == 0) io_uring_queue_exit(&ring);
    if (refused != EINVAL) break;
  }
  throw uring_refused("io_uring_setup", refused);
}

class UringQueue final : public KernelQueue {
 public:
  explicit UringQueue(const IoQueueOptions& options)
      : KernelQueue(options, uring_refused), batch_(std::max(1u, options.submit_batch)) {
    ring_ = open_ring(depth() + 2);  // one for the wake-up, one for old kernels' timeouts
    ring_fd_.reset(ring_.ring_fd);
    unsigned workers[2] = {8, 8};  // for what the kernel cannot start at once; best effort
    io_uring_register_iowq_max_workers(&ring_, workers);
    if (options.register_buffers != RegisterBuffers::kOff) {
      register_buffers(options.buffers);
      register_files(options.files);
    }
  }

  ~UringQueue() override {
    // Explicitly: closing the ring alone lets the kernel drop files and memory some time later.
    if (!buffers_.empty()) io_uring_unregister_buffers(&ring_);
    if (!files_.empty()) io_uring_unregister_files(&ring_);
    ring_fd_.release();  // io_uring_queue_exit() closes it
    io_uring_queue_exit(&ring_);
  }

  const char* name() const noexcept override { return "uring"; }
  Registered registered() const override {
    return {!buffers_.empty() && use_registered_, !files_.empty(), refused_};
  }

  int flush() noexcept override {
    while (!submitted_.empty() || io_uring_sq_ready(&ring_) > 0) {
      while (!submitted_.empty() && io_uring_sq_ready(&ring_) < batch_) {
        io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
        if (sqe == nullptr) break;
        prepare(*sqe, *submitted_.pop());
      }
      const int submitted = io_uring_submit(&ring_);
      if (submitted == -EINTR) continue;
      if (submitted < 0) return -submitted;
      if (submitted == 0) return EAGAIN;
    }
    return 0;
  }

  std::size_t reap(std::span<IoRequest*> done, nanoseconds timeout) noexcept override {
    std::size_t count = take_completed(done);
    if (count > 0 || done.empty() || timeout <= nanoseconds::zero()) return count;
    if (std::exchange(woken_, false)) return 0;
    const Clock::time_point until = Clock::now() + std::min<nanoseconds>(timeout, kLongestWait);
    while (true) {
      if (!arm_wake()) return pause();
      const nanoseconds left = until - Clock::now();
      if (left <= nanoseconds::zero()) return take_completed(done);
      __kernel_timespec limit = to_timespec(left);
      io_uring_cqe* cqe = nullptr;
      const int result = io_uring_wait_cqes(&ring_, &cqe, 1, &limit, nullptr);
      count = take_completed(done);
      if (count > 0 || std::exchange(woken_, false)) return count;
      if (result == -ETIME) return 0;
      if (result < 0 && result != -EINTR) return pause();
    }
  }

 private:
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };

  void register_buffers(std::span<const std::span<std::byte>> buffers) {
    std::vector<iovec> table;
    for (const std::span<std::byte> buffer : buffers) {
      for (std::size_t at = 0; at < buffer.size(); at += kLargestRegistered) {
        table.push_back({buffer.data() + at, std::min(kLargestRegistered, buffer.size() - at)});
      }
    }
    if (table.empty()) return;
    // Refused by memlock limits and by some sandboxes; plain reads and writes then cost a little
    // more CPU.
    const int result =
        io_uring_register_buffers(&ring_, table.data(), static_cast<unsigned>(table.size()));
    if (result != 0) return note_refusal("buffers", -result);
    for (const iovec& entry : table) {
      const auto* const begin = static_cast<const std::byte*>(entry.iov_base);
      buffers_.push_back({begin, begin + entry.iov_len});
    }
  }

  void register_files(std::span<const int> files) {
    if (files.empty()) return;
    const int result =
        io_uring_register_files(&ring_, files.data(), static_cast<unsigned>(files.size()));
    if (result != 0) return note_refusal("files", -result);
    files_.assign(files.begin(), files.end());
  }

  void note_refusal(const char* what, int sys_errno) {
    if (!refused_.empty()) refused_ += "; ";
    refused_ += not_registered(what, sys_errno);
  }

  int registered_buffer(const IoRequest& request) const noexcept {
    if (!use_registered_ || request.kind == IoKind::kSync) return -1;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (request.data >= buffers_[i].begin &&
          request.data + request.size_bytes <= buffers_[i].end) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  void prepare(io_uring_sqe& sqe, IoRequest& request) noexcept {
    const auto file = std::find(files_.begin(), files_.end(), request.fd);
    const bool fixed_file = file != files_.end();
    const int fd = fixed_file ? static_cast<int>(file - files_.begin()) : request.fd;
    const int buffer = registered_buffer(request);
    if (request.kind == IoKind::kSync) {
      io_uring_prep_fsync(&sqe, fd, IORING_FSYNC_DATASYNC);
    } else if (request.kind == IoKind::kRead && buffer >= 0) {
      io_uring_prep_read_fixed(&sqe, fd, request.data, request.size_bytes, request.offset_bytes,
                               buffer);
    } else if (request.kind == IoKind::kRead) {
      io_uring_prep_read(&sqe, fd, request.data, request.size_bytes, request.offset_bytes);
    } else if (buffer >= 0) {
      io_uring_prep_write_fixed(&sqe, fd, request.data, request.size_bytes, request.offset_bytes,
                                buffer);
    } else {
      io_uring_prep_write(&sqe, fd, request.data, request.size_bytes, request.offset_bytes);
    }
    if (fixed_file) io_uring_sqe_set_flags(&sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(&sqe, &request);
  }

  // Polls the eventfd through the ring; its completion carries no request. Poll, not read: a read
  // of an eventfd occupies a kernel worker on kernels before 5.7. False: the kernel takes nothing
  // just now.
  bool arm_wake() noexcept {
    if (!wake_armed_) {
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      if (sqe == nullptr) return false;
      io_uring_prep_poll_add(sqe, wake_fd(), POLLIN);
      io_uring_sqe_set_data(sqe, nullptr);
      wake_armed_ = true;
    }
    while (io_uring_sq_ready(&ring_) > 0) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted <= 0 && submitted != -EINTR) return false;
    }
    return true;
  }

  std::size_t take_completed(std::span<IoRequest*> done) noexcept {
    std::size_t count = 0;
    std::array<io_uring_cqe*, kPeekBatch> batch;
    while (count < done.size()) {
      const auto wanted = static_cast<unsigned>(std::min(batch.size(), done.size() - count));
      const unsigned taken = io_uring_peek_batch_cqe(&ring_, batch.data(), wanted);
      for (unsigned i = 0; i < taken; ++i) {
        // Kernels before 5.11 wait with a limit by a request of liburing's own.
        if (batch[i]->user_data == LIBURING_UDATA_TIMEOUT) continue;
        auto* const request = static_cast<IoRequest*>(io_uring_cqe_get_data(batch[i]));
        if (request == nullptr) {
          take_wake();
          continue;
        }
        request->result = batch[i]->res;
        if (request->result < 0) look_at_registration(*request);
        done[count++] = request;
      }
      io_uring_cq_advance(&ring_, taken);
      if (taken < wanted) break;
    }
    leave_flight(count);
    return count;
  }

  // Some kernels fail registered memory alone. Whatever it was, requests go without it from here
  // on, at the price of a little CPU. The drive issues those that failed once more
  // (DriveLoop::goes_unregistered()).
  void look_at_registration(const IoRequest& request) noexcept {
    const std::int64_t result = request.result;
    if (result == -EAGAIN || result == -EINTR || result == -EBUSY) return;
    if (registered_buffer(request) >= 0) use_registered_ = false;
  }

  std::uint32_t batch_;
  io_uring ring_{};
  base::UniqueFd ring_fd_;  // the ring's own
  const ClosedInForkedChild closed_in_child_{ring_fd_};
  std::vector<Range> buffers_;
  bool use_registered_ = true;
  std::vector<int> files_;
  std::string refused_;
};
}  // namespace

bool built_with_liburing() noexcept { return true; }

std::unique_ptr<IoQueue> make_io_queue_uring(const IoQueueOptions& options) {
  return std::make_unique<UringQueue>(options);
}
}  // namespace headrace::swap
