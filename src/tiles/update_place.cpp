// SPDX-License-Identifier: Apache-2.0
#include "tiles/update_place.hpp"

#include <algorithm>

namespace headrace::tiles {
bool UpdatePlace::note(std::uint64_t elements, double seconds) noexcept {
  if (on_ != UpdateOn::kAuto || elements == 0) return false;
  double& best = best_[tried_ % 2];
  if (tried_ >= kWarming) best = std::min(best, seconds / static_cast<double>(elements));
  if (++tried_ < kTries) return false;
  on_ = device_seconds() < kWorthMoving * cpu_seconds() ? UpdateOn::kDevice : UpdateOn::kCpu;
  return true;
}
}  // namespace headrace::tiles
