// SPDX-License-Identifier: Apache-2.0
// holding_drive.hpp: a real drive that holds back what a test picks until the test lets it go.
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "swap/drive.hpp"

namespace headrace::testing {
class HoldingDrive final : public swap::Drive {
 public:
  // Asked on the conductor about every transfer, and about those held again each millisecond.
  using Holds = std::function<bool(const swap::Transfer&)>;
  HoldingDrive(async::Conductor& conductor, swap::DriveOptions options, Holds holds)
      : conductor_(conductor),
        inner_(swap::make_drive_thread(conductor, std::move(options))),
        holds_(std::move(holds)) {
    look_.self = this;
    look_.run = [](async::Work* work) noexcept { static_cast<Look*>(work)->self->look(); };
  }
  void start(swap::Transfer& transfer) noexcept override {
    if (!holds_(transfer)) return inner_->start(transfer);
    held_.push_back(&transfer);
    look_later();
  }
  swap::DriveCounters counters() const noexcept override { return inner_->counters(); }
  const char* queue_name() const noexcept override { return inner_->queue_name(); }
  const std::string& queue_reason() const noexcept override { return inner_->queue_reason(); }
  bool stalled() const noexcept override { return inner_->stalled(); }

 private:
  struct Look : async::Timer {
    HoldingDrive* self = nullptr;
  };
  void look_later() noexcept {
    if (std::exchange(looking_, true)) return;
    conductor_.after(std::chrono::milliseconds(1), look_);
  }
  void look() noexcept {
    looking_ = false;
    for (swap::Transfer* transfer : std::exchange(held_, {})) start(*transfer);
  }

  async::Conductor& conductor_;
  std::unique_ptr<swap::Drive> inner_;
  Holds holds_;
  Look look_;
  bool looking_ = false;
  std::vector<swap::Transfer*> held_;
};
}  // namespace headrace::testing
