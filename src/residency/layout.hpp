// SPDX-License-Identifier: Apache-2.0
// layout.hpp: what a choice of residents and slots takes: the arena cut into ranges, one after
// another, and the rows of the table.
#pragma once
#include <cstdint>
#include <vector>

#include "residency/drive_shares.hpp"
#include "residency/plan.hpp"

namespace headrace::residency {
// What the planner is free to choose.
struct Choice {
  std::uint32_t update_slots = 1;
  std::uint32_t gather_slots = 1;
  std::vector<bool> weight_resident;  // per group
  std::vector<bool> record_resident;  // per tile
};

// The memory of every tier but nvme: ranges, slots, rows and their sums.
Plan lay_out(const PlanInputs& inputs, const Choice& choice);
// Adds what lies on nvme, what of it a step moves, and whether updates are deferred.
void add_traffic(Plan& plan, const PlanInputs& inputs);

inline constexpr const char* kDeviceUpdateRow = "updates on the device";

// What of a tile is swapped, each in whole pages.
TileExtents extents_of(const Plan& plan, const partition::Partition& partition, std::size_t tile);
// One row for each `what` of a tier; none for no bytes.
void add_row(Plan& plan, const char* what, const char* tier, std::uint64_t bytes);
}  // namespace headrace::residency
