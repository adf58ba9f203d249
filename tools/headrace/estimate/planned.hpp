// SPDX-License-Identifier: Apache-2.0
// planned.hpp: the memory that an engine would hold for a model, by the planner that engines
// allocate with.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "estimate/zero_estimates.hpp"
#include "headrace/settings.hpp"
#include "headrace/stats.hpp"
#include "model/model.hpp"

namespace headrace::tools {
struct Planned {
  std::string where;         // "parameters and state on NVMe"
  std::uint64_t host_bytes;  // per node
  std::uint64_t gpu_bytes;   // per GPU
  std::uint64_t nvme_bytes;  // per node
  std::uint64_t nvme_bytes_per_step;
  std::vector<PlanRow> rows;  // of one rank, "host", "device" and "nvme"
};
// Why no plan is made: a rank has more tiles than a plan has room for. "": one is.
std::string plan_refusal(const Model& model, const EstimateInputs& inputs,
                         const Settings& settings);
// With weights of bf16 on GPUs, one rank for each: all in host memory, state on NVMe, all on NVMe;
// with several ranks also stage 2.
// The rest of `settings` applies: tiles, slots, optimizer, moments, and a store, which is on NVMe
// wherever the state is. Throws as the planner does.
std::vector<Planned> planned(const Model& model, const EstimateInputs& inputs,
                             const Settings& settings);
}  // namespace headrace::tools
