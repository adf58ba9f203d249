// SPDX-License-Identifier: Apache-2.0
// zero_estimates.hpp: the closed forms by which DeepSpeed 0.19 estimates the memory of ZeRO-2 and
// ZeRO-3 (its estimate_zero2_ and estimate_zero3_model_states_mem_needs()).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::tools {
struct EstimateInputs {
  std::uint64_t parameters = 0;
  std::uint64_t largest_layer = 0;  // parameters
  std::uint32_t nodes = 1, gpus_per_node = 1;
  double buffer_factor = 1.5;  // what the estimators multiply host memory by
};
// Bytes of the states of a model: no activations.
struct ZeroEstimate {
  std::uint32_t stage = 3;
  // As in its settings: "cpu" or "none"; stage 2 has optimizer alone, and no zero_init.
  bool parameters_on_cpu = false, optimizer_on_cpu = false, zero_init = false;
  double host_bytes = 0;  // per node
  double gpu_bytes = 0;   // per GPU
  std::string formula;    // both, with P, L, G = GPUs per node, N = nodes, f = the factor
};
// Two of ZeRO-2, six of ZeRO-3.
std::vector<ZeroEstimate> zero_estimates(const EstimateInputs& inputs);
}  // namespace headrace::tools
