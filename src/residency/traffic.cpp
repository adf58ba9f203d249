// SPDX-License-Identifier: Apache-2.0
// traffic.cpp: the bytes of a plan that lie on nvme, and those of them that a step reads and
// writes.
#include <algorithm>

#include "base/units.hpp"
#include "residency/layout.hpp"

namespace headrace::residency {
namespace {
using partition::Partition;

bool weights_on_nvme(const Plan& plan) {
  return std::ranges::any_of(
      plan.sections, [](const SectionPlan& section) { return section.weight == Tier::kNvme; });
}

// kAuto defers where that overlaps something. With weights on NVMe: if there is a second gather
// slot for the next group. Without: if records are on NVMe, the device has memory of its own to
// copy weights to, or there are several ranks. Otherwise the update would only come later. What is
// lent is in the trainer's hands again when step() has returned.
bool is_deferred(const Plan& plan, const PlanInputs& in) {
  const auto lends = [](const GroupTraits& one) {
    return one.lends_gradients || one.lends_weights;
  };
  if (std::ranges::any_of(in.groups, lends)) return false;
  if (in.settings.update_mode != UpdateMode::kAuto)
    return in.settings.update_mode == UpdateMode::kDefer;
  if (weights_on_nvme(plan)) return plan.gather_slots > 1;
  // Several ranks wait for each other in forward whatever is resident.
  return !in.device_shares_host_memory || in.partition->world_size > 1 ||
         std::ranges::any_of(plan.tiles,
                             [](const TilePlan& tile) { return tile.record == Tier::kNvme; });
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// A store's slots beside those that a tile without a store would have; adds the writes of what lies
// in memory to the step's.
std::uint64_t add_commits(Plan& plan, const Partition& partition, std::uint32_t tile) {
  if (!plan.durable()) return 0;
  const auto [record, weight, slots] = extents_of(plan, partition, tile);
  const auto [all_record, all_weight, all_slots] = stored_extents(plan, partition, tile);
  if (!partition.section_of(tile).frozen) {
    const std::uint64_t resident = all_record + all_weight - record - weight;
    plan.report.nvme_written_bytes_per_step +=
        static_cast<double>(resident) / static_cast<double>(plan.commit_every);
  }
  return all_slots * (all_record + all_weight) - record - weight;
}
}  // namespace

// Where a pass turns, the groups it ended with are still in their slots: the last ones when
// backward begins, the first ones when the next micro-batch's forward does.
std::vector<std::uint32_t> gathers_per_step(const Plan& plan, std::uint32_t micro_batches) {
  const std::size_t groups = plan.group_in_place.size();
  std::vector<std::uint32_t> gathers(groups, 2 * micro_batches);
  const auto leave_out = [&](std::uint32_t turns, const auto& group_at) {
    std::uint32_t slots = plan.gather_slots;
    for (std::size_t i = 0; i < groups && slots > 0; ++i) {
      const std::size_t g = group_at(i);
      if (plan.group_in_place[g]) continue;
      gathers[g] -= turns;
      --slots;
    }
  };
  leave_out(micro_batches, [&](std::size_t i) { return groups - 1 - i; });
  leave_out(micro_batches - 1, [](std::size_t i) { return i; });
  return gathers;
}

std::uint32_t gathers_from_owners(const Plan& plan, std::uint32_t gathers) {
  return plan.node_ranks > 0 ? std::min(gathers, 1u) : gathers;
}

namespace {
SentPerStep sent_by_gathers(const Plan& plan, const Partition& partition, std::uint32_t group,
                            std::uint32_t rank, std::uint32_t gathers) {
  if (plan.node_ranks > 0) {
    const partition::SentWithNodes nodes =
        partition::sent_with_nodes(partition, group, rank, plan.node_ranks, plan.wire);
    const std::uint32_t first = gathers_from_owners(plan, gathers);
    return {static_cast<double>(first * nodes.spread + gathers * nodes.joined),
            static_cast<double>(first * nodes.spread_beyond)};
  }
  const double world = partition.world_size;
  const auto bytes =
      static_cast<double>(gathers * partition::sent_by(partition, group, rank, plan.wire).gathered);
  return {bytes, plan.reduce_ranks > 0 ? bytes / (world - 1) * (world - plan.reduce_ranks) : 0};
}

SentPerStep sent_by_reduction(const Plan& plan, const Partition& partition, std::uint32_t group,
                              std::uint32_t rank) {
  if (plan.reduce_ranks > 0) {
    const auto [within, beyond] =
        partition::reduced_in_nodes(partition, group, rank, plan.reduce_ranks);
    return {static_cast<double>(within + beyond), static_cast<double>(beyond)};
  }
  const auto reduced =
      static_cast<double>(partition::sent_by(partition, group, rank, plan.wire).reduced);
  if (plan.node_ranks == 0) return {reduced, 0};
  return {reduced, static_cast<double>(partition::sent_with_nodes(partition, group, rank,
                                                                  plan.node_ranks, plan.wire)
                                           .reduced_beyond)};
}
}  // namespace

SentPerStep sent_per_step(const Plan& plan, const Partition& partition,
                          const std::vector<std::uint32_t>& gathers, std::uint32_t micro_batches,
                          std::uint32_t rank) {
  SentPerStep all;
  for (std::uint32_t g = 0; g < gathers.size(); ++g) {
    const SentPerStep of_gathers = sent_by_gathers(plan, partition, g, rank, gathers[g]);
    const SentPerStep once = sent_by_reduction(plan, partition, g, rank);
    all.bytes += of_gathers.bytes + micro_batches * once.bytes;
    all.to_other_nodes += of_gathers.to_other_nodes + micro_batches * once.to_other_nodes;
  }
  return all;
}

void add_traffic(Plan& plan, const PlanInputs& in) {
  const Partition& partition = *in.partition;
  PlanReport& report = plan.report;
  plan.deferred = report.deferred_updates = is_deferred(plan, in);
  const std::uint32_t micro_batches = in.settings.gradient_accumulation_steps;
  const std::vector<std::uint32_t> gathers = gathers_per_step(plan, micro_batches);
  std::uint64_t state_bytes = 0, state_resident = 0, weight_bytes = 0, weight_resident = 0;
  std::uint64_t state_nvme = 0, weight_nvme = 0, other_slots = 0;
  for (std::uint32_t t = 0; t < partition.tiles.size(); ++t) {
    const TilePlan& tile = plan.tiles[t];
    const auto [record, weight, slots] = extents_of(plan, partition, t);
    state_nvme += record;
    weight_nvme += weight;
    const partition::Section& section = partition.section_of(t);
    const bool updated = !section.frozen;
    // An update that is deferred hands its weights to the next forward pass.
    const std::uint64_t reads =
        gathers_from_owners(plan, gathers[section.group]) + (updated && !plan.deferred ? 1 : 0);
    report.nvme_read_bytes_per_step += static_cast<double>(record + reads * weight);
    if (updated) report.nvme_written_bytes_per_step += static_cast<double>(record + weight);
    other_slots += add_commits(plan, partition, t);
    state_bytes += tile.layout.size_bytes;
    state_resident += record == 0 ? tile.layout.size_bytes : 0;
    weight_bytes += tile.weight_bytes;
    weight_resident += weight == 0 ? tile.weight_bytes : 0;
  }
  add_row(plan, "optimizer state", "nvme", state_nvme);
  add_row(plan, "parameters", "nvme", weight_nvme);
  add_row(plan, "the store's other slots", "nvme", other_slots);
  const SentPerStep sent = sent_per_step(plan, partition, gathers, micro_batches, partition.rank);
  report.sent_bytes_per_step = sent.bytes;
  report.sent_to_other_nodes_bytes_per_step = sent.to_other_nodes;
  report.resident_share_of_state = share(state_resident, state_bytes);
  report.resident_share_of_parameters = share(weight_resident, weight_bytes);
}
}  // namespace headrace::residency
