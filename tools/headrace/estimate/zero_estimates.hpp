// SPDX-License-Identifier: Apache-2.0
// zero_estimates.hpp: the closed forms by which DeepSpeed estimates the memory of ZeRO-2 and ZeRO-3
// (its estimate_zero2_ and estimate_zero3_model_states_mem_needs()), as 0.19.8 has them. Compared
// with its functions by tests/tools/compare_estimates.py.
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
  std::string versions;   // of DeepSpeed, "from 0.14.3"; "": all that have the function
};
// The bytes of a model's states on each GPU at a stage of ZeRO, with nothing offloaded: Rajbhandari
// et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5, with 2
// bytes of weight, 2 of gradient and K = 12 of f32 master and moments per parameter.
struct StageStates {
  std::uint32_t stage = 0;
  double gpu_bytes = 0;
  std::string formula;  // with P, G, N as above
};
std::vector<StageStates> zero_stages(const EstimateInputs& inputs);

// Three of ZeRO-2, of which two are one setting in versions before and after; six of ZeRO-3.
std::vector<ZeroEstimate> zero_estimates(const EstimateInputs& inputs);
}  // namespace headrace::tools
