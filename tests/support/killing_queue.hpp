// SPDX-License-Identifier: Apache-2.0
// killing_queue.hpp: an I/O queue that ends its process at a request that is counted.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "swap/io_queue.hpp"

namespace headrace::testing {
class KillingQueue final : public swap::IoQueue {
 public:
  // Calls `kill` before request `kill_at` is submitted, counted from 1, or before it is reaped,
  // counted on.
  KillingQueue(std::unique_ptr<swap::IoQueue> inner, std::uint64_t kill_at,
               std::atomic<std::uint64_t>& events, std::function<void()> kill)
      : inner_(std::move(inner)), kill_at_(kill_at), events_(events), kill_(std::move(kill)) {}
  const char* name() const noexcept override { return inner_->name(); }
  std::uint32_t depth() const noexcept override { return inner_->depth(); }
  std::uint32_t in_flight() const noexcept override { return inner_->in_flight(); }
  bool submit(swap::IoRequest& request) noexcept override {
    count();
    return inner_->submit(request);
  }
  int flush() noexcept override { return inner_->flush(); }
  std::size_t reap(std::span<swap::IoRequest*> done,
                   std::chrono::nanoseconds timeout) noexcept override {
    const std::size_t reaped = inner_->reap(done, timeout);
    for (std::size_t i = 0; i < reaped; ++i) count();
    return reaped;
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  void count() noexcept {
    if (events_.fetch_add(1) + 1 == kill_at_) kill_();
  }
  const std::unique_ptr<swap::IoQueue> inner_;
  const std::uint64_t kill_at_;
  std::atomic<std::uint64_t>& events_;
  const std::function<void()> kill_;
};
}  // namespace headrace::testing
