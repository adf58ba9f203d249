// SPDX-License-Identifier: Apache-2.0
// kernel_queue.hpp: the common part of queues over the kernel's asynchronous interfaces: the bound,
// the requests that the kernel has not received yet, and an eventfd that ends a wait.
//
// The queue polls the eventfd itself, as one more request, so that there is one thing to wait for.
// Each queue implements this poll and the completions in its own way.
#pragma once
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <thread>

#include "base/check.hpp"
#include "base/intrusive_list.hpp"
#include "base/unique_fd.hpp"
#include "swap/io_queue.hpp"

namespace headrace::swap {
class KernelQueue : public IoQueue {
 public:
  std::uint32_t depth() const noexcept final { return depth_; }
  std::uint32_t in_flight() const noexcept final { return in_flight_; }

  bool submit(IoRequest& request) noexcept final {
    if (in_flight_ == depth_) return false;
    ++in_flight_;
    submitted_.push(request);
    return true;
  }

  void wake() noexcept final {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof one);
  }

 protected:
  using Clock = std::chrono::steady_clock;

  // `refused` makes the error for a system call that the kernel refused.
  KernelQueue(const IoQueueOptions& options, Error (*refused)(const char* call, int sys_errno))
      : depth_(std::max(1u, options.depth)), wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_fd_) throw refused("eventfd", errno);
  }

  int wake_fd() const noexcept { return wake_fd_.get(); }

  // The poll of the eventfd has completed.
  void take_wake() noexcept {
    std::uint64_t times = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_fd_.get(), &times, sizeof times);
    wake_armed_ = false;
    woken_ = true;
  }

  // The kernel briefly lacks a resource. Returns from a reap without a result, so that the caller's
  // loop tries again.
  static std::size_t pause() noexcept {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return 0;
  }

  void leave_flight(std::size_t count) noexcept {
    HEADRACE_CHECK(count <= in_flight_, "the kernel completed more requests than it was given");
    in_flight_ -= static_cast<std::uint32_t>(count);
  }

  base::IntrusiveQueue<&IoRequest::next> submitted_;  // not yet passed to the kernel
  bool wake_armed_ = false;                           // the eventfd is being polled
  bool woken_ = false;  // a wake-up that no waiting reap has answered yet

 private:
  const std::uint32_t depth_;
  const base::UniqueFd wake_fd_;
  std::uint32_t in_flight_ = 0;
};
}  // namespace headrace::swap
