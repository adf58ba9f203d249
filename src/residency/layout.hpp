// SPDX-License-Identifier: Apache-2.0
// layout.hpp: computes the memory that a choice of residents and slots takes: the ranges of the
// arena, in order, and the rows of the table.
#pragma once
#include <cstdint>
#include <vector>

#include "residency/drive_shares.hpp"
#include "residency/plan.hpp"

namespace headrace::residency {
// The planner's free choices.
struct Choice {
  std::uint32_t update_slots = 1;
  std::uint32_t gather_slots = 1;
  std::uint32_t buckets = 1;          // with several ranks
  std::vector<bool> weight_resident;  // per group
  std::vector<bool> record_resident;  // per tile
};

// Lays out the memory of every tier except nvme: ranges, slots, rows and their sums.
Plan lay_out(const PlanInputs& inputs, const Choice& choice);
// Adds the bytes on nvme, the bytes that a step moves, and whether updates are deferred.
void add_traffic(Plan& plan, const PlanInputs& inputs);

// Whether several ranks keep parameters joined from their first gather of a step to their update.
bool keeps_joined(const PlanInputs& inputs);
// They do, or parameters are to stay on a device with memory of its own.
bool has_slot_per_group(const PlanInputs& inputs);

// The form in which ranks send values to each other.
partition::Wire wire_of(const PlanInputs& inputs);

// The ranks of a node that keeps a copy of what they have joined; 0: none does.
std::uint32_t node_ranks(const PlanInputs& inputs);

// The ranks of a node that add their gradients to each other first; 0: none do.
std::uint32_t reduce_ranks(const PlanInputs& inputs);

// How often each group is gathered from elsewhere in a step: in forward and backward, unless its
// slot still has it.
std::vector<std::uint32_t> gathers_per_step(const Plan& plan, std::uint32_t micro_batches);
// Of so many gathers of a group in a step, those that read its weights and leave the node. With
// nodes, that is the first: then they have a copy.
std::uint32_t gathers_from_owners(const Plan& plan, std::uint32_t gathers);
// Bytes of parameters and gradients that a rank sends to the others. `gathers`: of each group.
struct SentPerStep {
  double bytes = 0;
  double to_other_nodes = 0;  // 0 without nodes
};
SentPerStep sent_per_step(const Plan& plan, const partition::Partition& partition,
                          const std::vector<std::uint32_t>& gathers, std::uint32_t micro_batches,
                          std::uint32_t rank);

inline constexpr const char* kDeviceUpdateRow = "updates on the device";

// The swapped bytes of a tile, each in whole pages.
TileExtents extents_of(const Plan& plan, const partition::Partition& partition, std::size_t tile);
// The extents that a tile has on its drive: those bytes, or if the plan is durable two slots for
// all of its bytes, resident or not. A frozen tile never changes, and has one slot.
TileExtents stored_extents(const Plan& plan, const partition::Partition& partition,
                           std::size_t tile);
// Adds to the row of a tier with this `what`, or creates it; 0 bytes add no row.
void add_row(Plan& plan, const char* what, const char* tier, std::uint64_t bytes);
}  // namespace headrace::residency
