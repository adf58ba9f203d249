// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/units.hpp"
#include "headrace/stats.hpp"

namespace headrace {
std::string PlanReport::to_text() const {
  std::string text;
  char line[160];
  const auto add = [&](const char* what, const char* tier, std::uint64_t bytes) {
    std::snprintf(line, sizeof line, "  %-34s %-13s %12s %18llu\n", what, tier,
                  base::format_bytes(bytes).c_str(), static_cast<unsigned long long>(bytes));
    text += line;
  };
  std::snprintf(line, sizeof line, "  %-34s %-13s %12s %18s\n", "what", "tier", "size", "bytes");
  text += line;
  for (const PlanRow& row : rows) add(row.what.c_str(), row.tier.c_str(), row.bytes);
  add("sum", "host", host_bytes);
  if (device_bytes != 0) add("sum", "device", device_bytes);
  if (nvme_bytes != 0) add("sum", "nvme", nvme_bytes);
  return text;
}
}  // namespace headrace
