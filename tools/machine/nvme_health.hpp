// SPDX-License-Identifier: Apache-2.0
// nvme_health.hpp: what an NVMe drive says of its own wear.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace headrace::tools {
// Of the log page "SMART / health information" (NVMe base specification, log 02h).
struct NvmeHealth {
  bool spare_low = false;   // fewer spare blocks than the drive calls healthy
  bool unreliable = false;  // media or internal errors
  bool read_only = false;   // it takes no more writes
  std::uint32_t spare_percent = 0;
  std::uint32_t used_percent = 0;  // of the writes it is rated for; may pass 100
  double temperature_c = 0;
  double written_bytes = 0;  // by the host, over its life
  double media_errors = 0;
};
inline constexpr std::size_t kNvmeHealthBytes = 512;
NvmeHealth decode_nvme_health(std::span<const std::byte, kNvmeHealthBytes> page);

// Asks the drive of /dev/`controller` ("nvme0"), which changes nothing on it. Returns 0 with
// `health` filled in, or an errno: EACCES for all but root.
int read_nvme_health(const std::string& controller, NvmeHealth& health);
}  // namespace headrace::tools
