// SPDX-License-Identifier: Apache-2.0
// all_on_nvme.hpp: settings with parameters and state in swap files, in tiles of one block.
#pragma once
#include <string>

#include "headrace/settings.hpp"

namespace headrace::testing {
inline Settings all_on_nvme(const std::string& directory) {
  Settings s;
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = OffloadDevice::kNvme;
  s.nvme_paths = {directory};
  s.tile_elements = 65536;
  return s;
}
}  // namespace headrace::testing
