// SPDX-License-Identifier: Apache-2.0
// drive_at_speed.hpp: a drive in memory that moves one transfer after the other, at a speed that is
// given, by its conductor's clock: exact under the simulated one.
#pragma once
#include <algorithm>
#include <cmath>

#include "support/drive_simulated.hpp"

namespace headrace::testing {
struct DriveSpeedGiven {
  double read_bytes_per_second = 1e9, write_bytes_per_second = 1e9;
  // The link it shares with other drives: busy until then. Null: one of its own.
  async::Nanoseconds* link = nullptr;
  int read_error = 0, write_error = 0, sync_error = 0;  // errno of every such transfer
  bool stalls = false;                                  // says so, beside its errors
  std::vector<int>* write_errors = nullptr;             // of the first writes, one each
};

class DriveAtSpeed final : public DriveSimulated {
 public:
  DriveAtSpeed(async::Conductor& conductor, const DriveSpeedGiven& speed)
      : DriveSimulated(conductor, 1), speed_(speed) {}
  bool stalled() const noexcept override { return speed_.stalls; }

 protected:
  // A sync ends with what is under way.
  async::Nanoseconds duration_of(const swap::Transfer& transfer) noexcept override {
    async::Nanoseconds& busy_until = speed_.link != nullptr ? *speed_.link : own_link_;
    const bool read = transfer.kind == swap::IoKind::kRead;
    const double speed = read ? speed_.read_bytes_per_second : speed_.write_bytes_per_second;
    const async::Nanoseconds now = conductor_.now();
    busy_until =
        std::max(busy_until, now) +
        async::Nanoseconds(std::llround(1e9 * static_cast<double>(transfer.size_bytes) / speed));
    return busy_until - now;
  }
  int error_of(const swap::Transfer& transfer) noexcept override {
    switch (transfer.kind) {
      case swap::IoKind::kRead:
        return speed_.read_error;
      case swap::IoKind::kWrite:
        return next_write_error();
      case swap::IoKind::kSync:
        return speed_.sync_error;
    }
    return 0;
  }

 private:
  int next_write_error() noexcept {
    if (speed_.write_errors == nullptr || speed_.write_errors->empty()) return speed_.write_error;
    const int error = speed_.write_errors->front();
    speed_.write_errors->erase(speed_.write_errors->begin());
    return error;
  }

  DriveSpeedGiven speed_;
  async::Nanoseconds own_link_{0};
};
}  // namespace headrace::testing
