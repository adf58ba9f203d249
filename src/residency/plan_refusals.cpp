// SPDX-License-Identifier: Apache-2.0
#include "residency/plan_refusals.hpp"

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::residency {
using base::format_bytes;
using base::format_bytes_exactly;

namespace {
std::string table_of(const Plan& plan) {
  std::string table = plan.report.to_text();
  table.pop_back();  // a message ends with its last line
  return "\n" + table;
}

// Whether smaller tiles would do within `limit`, or else how much less they would need.
std::string smaller_tiles(const PlanInputs& in, std::uint64_t smallest, std::uint64_t limit) {
  if (!in.smallest_with_tiles) return "";
  const std::uint64_t now = in.partition->tile_elements;
  std::uint64_t tile = now, best = 0;
  while (tile > base::kBlockElements && smallest > limit) {
    tile = base::align_up(tile / 2, base::kBlockElements);
    const std::uint64_t bytes = in.smallest_with_tiles(tile);
    if (bytes >= smallest) continue;
    smallest = bytes;
    best = tile;
  }
  if (best == 0) return "";
  const bool does = smallest <= limit;
  return (does ? "Set headrace.tile_elements to " : "With headrace.tile_elements ") +
         std::to_string(best) + " (it is " + std::to_string(now) +
         (does ? "), with which " : ") it would be ") + std::to_string(smallest) + " bytes (" +
         format_bytes(smallest) + (does ? ") would do. " : "). ");
}

// Names what could move to a drive but does not, if that would take less memory.
std::string more_on_nvme(const PlanInputs& in, Choice choice, std::uint64_t smallest) {
  const bool state = in.settings.offload_optimizer != OffloadDevice::kNvme;
  const bool parameters = in.settings.offload_parameters != OffloadDevice::kNvme;
  for (std::size_t g = 0; g < choice.weight_resident.size(); ++g) {
    if (parameters) choice.weight_resident[g] = in.groups[g].weights_stay();
  }
  if (state) choice.record_resident.assign(choice.record_resident.size(), false);
  const std::uint64_t bytes = lay_out(in, choice).report.host_bytes;
  if ((!state && !parameters) || bytes >= smallest) return "";
  return std::string("Set ") + (state ? "zero_optimization.offload_optimizer.device" : "") +
         (state && parameters ? " and " : "") +
         (parameters ? "zero_optimization.offload_param.device" : "") +
         " to nvme, with which it would be " + std::to_string(bytes) + " bytes (" +
         format_bytes(bytes) + "). ";
}
// "Set ...: it would be ..." for other settings, if they need less.
std::string less_with(const PlanInputs& other, const Choice& choice, std::uint64_t smallest,
                      const std::string& set) {
  const std::uint64_t bytes = lay_out(other, choice).report.host_bytes;
  if (bytes >= smallest) return "";
  return set + ": it would be " + std::to_string(bytes) + " bytes (" + format_bytes(bytes) + "). ";
}
// What stage 3 would need, if joined parameters are kept.
std::string parameters_not_kept(PlanInputs in, const Choice& choice, std::uint64_t smallest) {
  if (!keeps_joined(in)) return "";
  in.settings.zero_stage = 3;
  return less_with(in, choice, smallest,
                   "Set zero_optimization.stage to 3, where parameters do not stay joined");
}
// What it would be without the copies that nodes keep.
std::string nothing_for_nodes(PlanInputs in, const Choice& choice, std::uint64_t smallest) {
  if (node_ranks(in) == 0) return "";
  in.settings.zero_hpz_partition_size = 1;
  return less_with(in, choice, smallest,
                   "Set zero_optimization.zero_hpz_partition_size to 1, where no node keeps a copy "
                   "of the parameters");
}
void refuse_nodes_of(std::uint32_t ranks, const std::string& key, std::uint32_t world) {
  if (ranks == 0 || world % ranks == 0) return;
  const auto text = [](std::uint32_t number) { return std::to_string(number); };
  throw Error(Code::kInvalidArgument,
              key + " is " + text(ranks) + ", and " + text(world) +
                  " ranks do not make up whole nodes of " + text(ranks) +
                  "; nothing was allocated. Set it to the number of ranks of each node, or to 1.");
}
}  // namespace

void refuse_nodes(const PlanInputs& in) {
  refuse_nodes_of(node_ranks(in), "zero_optimization.zero_hpz_partition_size",
                  in.partition->world_size);
  refuse_nodes_of(reduce_ranks(in), "headrace.hierarchical_reduce_ranks", in.partition->world_size);
}

void refuse_host(const PlanInputs& in, const Choice& choice, const Plan& least,
                 std::uint64_t limit) {
  const std::uint64_t smallest = least.report.host_bytes, left = in.machine_left_bytes;
  const bool machine = left != 0 && smallest > left;
  std::string offload = parameters_not_kept(in, choice, smallest);
  if (offload.empty()) offload = nothing_for_nodes(in, choice, smallest);
  if (offload.empty()) offload = more_on_nvme(in, choice, smallest);
  const std::string tiles =
      offload.empty() ? smaller_tiles(in, smallest, machine ? left : limit) : std::string();
  const std::string needed = format_bytes_exactly(smallest);
  std::string text = "the least possible plan needs " + needed + " of host memory, and ";
  if (machine) {
    text += format_bytes_exactly(left) + " is left (" + in.machine_limit_source +
            "); nothing was allocated. " + offload + tiles + (offload.empty() ? "Run" : "Or run") +
            " where at least " + needed + " of memory is left.";
  } else {
    text += "the budget is " + format_bytes_exactly(limit) +
            (in.settings.host_budget_auto ? " (headrace.host_budget_bytes \"auto\")"
                                          : " (headrace.host_budget_bytes)") +
            "; nothing was allocated. " + offload + tiles +
            (offload.empty() ? "The" : "Without that the") + " smallest budget that would do is " +
            std::to_string(smallest) + " bytes (" + format_bytes(smallest) +
            "): set headrace.host_budget_bytes to that or more.";
  }
  throw Error(Code::kOutOfBudget, text + table_of(least));
}

void refuse_device(const PlanInputs& in, const Plan& least) {
  const std::uint64_t bytes = least.report.device_bytes;
  const std::uint64_t updates = least.device_update_slots * least.device_update_slot_bytes;
  const bool bound = in.settings.offload_parameters == OffloadDevice::kNone;
  throw Error(
      Code::kOutOfBudget,
      "the least possible plan needs " + format_bytes_exactly(bytes) +
          " of the device's memory, and the budget is " +
          format_bytes_exactly(in.settings.device_budget_bytes) +
          " (headrace.device_budget_bytes); nothing was allocated. " +
          (updates > 0
               ? "With headrace.update_on \"cpu\" it would be " + format_bytes(updates) + " less. "
               : "") +
          (keeps_joined(in)
               ? "Set zero_optimization.stage to 3: at a lower one, all parameters stay "
                 "joined on the device. Or set"
           : bound ? "Set zero_optimization.offload_param.device to cpu or nvme: parameters "
                     "are on the device whole. Or set"
                   : "Make groups smaller: a gather slot holds the largest. Or set") +
          " headrace.device_budget_bytes to " + std::to_string(bytes) + " or more." +
          table_of(least));
}

void refuse_beyond_machine(const PlanInputs& in, const Plan& plan, std::uint64_t limit) {
  throw Error(
      Code::kOutOfBudget,
      "the plan for a budget of " + format_bytes_exactly(limit) +
          " (headrace.host_budget_bytes) takes " + format_bytes_exactly(plan.report.host_bytes) +
          " of host memory, and " + format_bytes_exactly(in.machine_left_bytes) + " is left (" +
          in.machine_limit_source + "); nothing was allocated. Set headrace.host_budget_bytes to " +
          std::to_string(in.machine_left_bytes) + " or less, or to \"auto\"." + table_of(plan));
}

std::string larger_than_resident(const Plan& plan, std::uint64_t for_all) {
  return "offloading takes more host memory than it saves: the plan takes " +
         format_bytes_exactly(plan.report.host_bytes) + ", all in memory would take " +
         format_bytes_exactly(for_all) + "; set headrace.host_budget_bytes to " +
         std::to_string(for_all) + " or more, and all stays in memory";
}
}  // namespace headrace::residency
