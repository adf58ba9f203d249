// SPDX-License-Identifier: Apache-2.0
// headrace/tier.hpp: where bytes can live.
#pragma once

namespace headrace {
enum class Tier { kDevice, kHost, kNvme };
constexpr const char* name_of(Tier tier) noexcept {
  return tier == Tier::kDevice ? "device" : tier == Tier::kHost ? "host" : "nvme";
}
}  // namespace headrace
