// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_overhead.hpp"

#include "headrace/cuda.hpp"

namespace headrace {
DeviceOverhead cuda_overhead() noexcept {
  using namespace device::cuda;
  return {kLandingSlots * kLandingSlotBytes, kLandingSlots * kLandingHalfBytes};
}
}  // namespace headrace
