// SPDX-License-Identifier: Apache-2.0
#include "estimate/planned.hpp"

#include "headrace/cuda.hpp"
#include "model/store_bytes.hpp"
#include "partition/partition.hpp"
#include "residency/plan.hpp"

namespace headrace::tools {
namespace {
struct Placement {
  const char* where;
  OffloadDevice parameters, optimizer;
  std::uint32_t stage = 3;
};
constexpr Placement kPlacements[] = {
    {"all in host memory", OffloadDevice::kCpu, OffloadDevice::kCpu},
    {"state on NVMe", OffloadDevice::kCpu, OffloadDevice::kNvme},
    {"parameters and state on NVMe", OffloadDevice::kNvme, OffloadDevice::kNvme},
    {"all in host memory, parameters joined on the GPU (stage 2)", OffloadDevice::kCpu,
     OffloadDevice::kCpu, 2}};
}  // namespace

std::string plan_refusal(const Model& model, const EstimateInputs& inputs,
                         const Settings& settings) {
  double tiles = 0;
  for (const ModelGroup& group : model.groups)
    tiles +=
        tiles_of(group.elements(), settings.tile_elements, inputs.gpus_per_node * inputs.nodes);
  return tiles_refusal(tiles, settings.tile_elements);
}

std::vector<Planned> planned(const Model& model, const EstimateInputs& inputs,
                             const Settings& settings) {
  const std::uint32_t per_node = inputs.gpus_per_node;
  // All ranks have shards of one size: the first is as good as any.
  const DType dtype = settings.parameter_dtype().value_or(DType::kBf16);
  const partition::Partition partition = partition::make_partition(
      model.shapes(dtype), settings.tile_elements, 0, per_node * inputs.nodes);
  std::vector<const ModelGroup*> groups;
  for (const ModelGroup& group : model.groups) groups.push_back(&group);
  std::vector<Planned> all;
  for (const Placement& placement : kPlacements) {
    if (placement.stage < 3 && partition.world_size == 1) continue;
    residency::PlanInputs in;
    in.partition = &partition;
    in.groups.resize(model.groups.size());
    in.settings = settings;
    in.settings.offload_parameters = placement.parameters;
    in.settings.offload_optimizer = placement.optimizer;
    in.settings.zero_stage = placement.stage;
    in.settings.nvme_paths = {"NVMe"};
    in.device_shares_host_memory = false;
    in.device_overhead = cuda_overhead();
    in.bookkeeping_bytes = partition.bookkeeping_bytes();
    in.commit_bytes = commit_bytes(settings, partition);
    in.registration_bytes = registration_bytes(settings, groups);
    const PlanReport report = residency::make_plan(in).report;
    all.push_back(
        {placement.where, report.host_bytes * per_node, report.device_bytes,
         report.nvme_bytes * per_node,
         static_cast<std::uint64_t>(
             (report.nvme_read_bytes_per_step + report.nvme_written_bytes_per_step) * per_node),
         report.rows});
  }
  return all;
}
}  // namespace headrace::tools
