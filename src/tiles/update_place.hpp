// SPDX-License-Identifier: Apache-2.0
// update_place.hpp: chooses where the tiles of a step are updated: on the CPU, or on the device.
#pragma once
#include <cstdint>
#include <limits>

#include "headrace/settings.hpp"

namespace headrace::tiles {
// "auto" updates on the device if that takes less than this share of the CPU's time, so that noise
// does not decide.
inline constexpr double kWorthMoving = 0.95;

// With kAuto, steps are updated on both in turn: one warms up each, and two are measured. Then the
// place with less time per element stays, and the device only if it is worth moving.
class UpdatePlace {
 public:
  explicit UpdatePlace(UpdateOn on) noexcept : on_(on) {}

  // The place of the next step's updates.
  bool on_device() const noexcept {
    if (on_ != UpdateOn::kAuto) return on_ == UpdateOn::kDevice;
    return tried_ % 2 == 1;
  }
  // Notes the update of a step: its elements, and the time with an update in progress. Returns true
  // if this decides the place; never for a step without elements.
  bool note(std::uint64_t elements, double seconds) noexcept;

  double cpu_seconds() const noexcept { return best_[0]; }  // per element
  double device_seconds() const noexcept { return best_[1]; }

 private:
  static constexpr std::uint32_t kWarming = 2, kTries = 6;
  UpdateOn on_;
  std::uint32_t tried_ = 0;
  double best_[2] = {std::numeric_limits<double>::infinity(),
                     std::numeric_limits<double>::infinity()};
};
}  // namespace headrace::tiles
