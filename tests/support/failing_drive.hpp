// SPDX-License-Identifier: Apache-2.0
// failing_drive.hpp: a real drive, of whose transfers a test fails those that it picks.
#pragma once
#include <cerrno>
#include <functional>
#include <memory>
#include <utility>

#include "swap/drive.hpp"

namespace headrace::testing {
class FailingDrive final : public swap::Drive {
 public:
  // `fails` is asked about every transfer, on the conductor; those that it picks end in EIO with
  // nothing moved or synced.
  using Fails = std::function<bool(const swap::Transfer&)>;
  FailingDrive(async::Conductor& conductor, swap::DriveOptions options, Fails fails)
      : conductor_(conductor),
        inner_(swap::make_drive_thread(conductor, std::move(options))),
        fails_(std::move(fails)) {}
  void start(swap::Transfer& transfer) noexcept override {
    if (!fails_(transfer)) return inner_->start(transfer);
    transfer.done_bytes = 0;
    transfer.error = EIO;
    conductor_.post(transfer);
  }
  swap::DriveCounters counters() const noexcept override { return inner_->counters(); }
  const char* queue_name() const noexcept override { return inner_->queue_name(); }
  const std::string& queue_reason() const noexcept override { return inner_->queue_reason(); }
  bool stalled() const noexcept override { return inner_->stalled(); }

 private:
  async::Conductor& conductor_;
  std::unique_ptr<swap::Drive> inner_;
  Fails fails_;
};
}  // namespace headrace::testing
