// SPDX-License-Identifier: Apache-2.0
// plan_rows.hpp: what the planner counts with: a tile's extents, the rows of the table.
#pragma once
#include <algorithm>

#include "base/units.hpp"
#include "residency/drive_shares.hpp"
#include "residency/plan.hpp"

namespace headrace::residency {
// What of a tile is swapped, each in whole pages.
inline TileExtents extents_of(const Plan& plan, const partition::Partition& partition,
                              std::size_t t) {
  const TilePlan& tile = plan.tiles[t];
  const bool weight_nvme = plan.sections[partition.tiles[t].section].weight == Tier::kNvme;
  return {.record_bytes = tile.record == Tier::kNvme ? tile.layout.size_bytes : 0,
          .weight_bytes = weight_nvme ? base::align_up(tile.weight_bytes, base::kIoAlignment) : 0};
}

// One row for each `what` of a tier; none for no bytes.
inline void add_row(Plan& plan, const char* what, const char* tier, std::uint64_t bytes) {
  if (bytes == 0) return;
  auto& rows = plan.report.rows;
  const auto same = std::ranges::find_if(
      rows, [&](const PlanRow& r) { return r.what == what && r.tier == tier; });
  if (same != rows.end()) {
    same->bytes += bytes;
  } else {
    rows.push_back({what, tier, bytes});
  }
}
}  // namespace headrace::residency
