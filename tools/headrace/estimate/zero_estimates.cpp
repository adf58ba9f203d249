// SPDX-License-Identifier: Apache-2.0
#include "estimate/zero_estimates.hpp"

#include <algorithm>

namespace headrace::tools {
namespace {
// ZeRO-2 keeps the 2-byte weights whole on each GPU; with the optimizer on the CPU it counts 16
// bytes of f32 master, moments and gradients there.
ZeroEstimate stage2_on_cpu(const EstimateInputs& in) {
  const auto p = static_cast<double>(in.parameters);
  const double gpus = static_cast<double>(in.gpus_per_node) * in.nodes;
  ZeroEstimate e;
  e.stage = 2;
  e.optimizer_on_cpu = true;
  e.host_bytes = p * std::max(4 * gpus, 16.0) * in.buffer_factor;
  e.gpu_bytes = 2 * p;
  e.formula = "P max(4 G N, 16) f | 2 P";
  return e;
}

// Until 0.14.2 it took the 16-bit gradients for whole on each GPU; since then they are divided.
ZeroEstimate stage2_on_gpu(const EstimateInputs& in, bool until_0_14_2) {
  const auto p = static_cast<double>(in.parameters);
  const double per_node = in.gpus_per_node, gpus = per_node * in.nodes;
  ZeroEstimate e;
  e.stage = 2;
  e.host_bytes = p * 4 * per_node * in.buffer_factor;
  e.gpu_bytes = until_0_14_2 ? 4 * p + 16 * p / gpus : 2 * p + 18 * p / gpus;
  e.formula = until_0_14_2 ? "4 P G f | 4 P + 16 P / (G N)" : "4 P G f | 2 P + 18 P / (G N)";
  e.versions = until_0_14_2 ? "to 0.14.2" : "from 0.14.3";
  return e;
}

// Without zero_init each process builds the model whole, in f32, before it is divided.
ZeroEstimate stage3(const EstimateInputs& in, bool parameters_on_cpu, bool optimizer_on_cpu,
                    bool zero_init) {
  const auto p = static_cast<double>(in.parameters);
  const double layer = 4.0 * static_cast<double>(in.largest_layer);
  const double per_node = in.gpus_per_node, nodes = in.nodes, gpus = per_node * nodes;
  ZeroEstimate e;
  e.parameters_on_cpu = parameters_on_cpu;
  e.optimizer_on_cpu = optimizer_on_cpu;
  e.zero_init = zero_init;
  if (optimizer_on_cpu) {
    const double each = parameters_on_cpu ? 18 : 16;
    const std::string text = parameters_on_cpu ? "18" : "16";
    e.host_bytes =
        p * (zero_init ? each / nodes : std::max(4 * per_node, each / nodes)) * in.buffer_factor;
    e.gpu_bytes = layer + (parameters_on_cpu ? 0 : 2 * p / gpus);
    e.formula = (zero_init ? text + " P / N f" : "P max(4 G, " + text + " / N) f") +
                (parameters_on_cpu ? " | 4 L" : " | 4 L + 2 P / (G N)");
  } else {
    e.host_bytes = (zero_init ? layer : 4 * p) * per_node * in.buffer_factor;
    e.gpu_bytes = layer + 18 * p / gpus;
    e.formula = std::string(zero_init ? "4 L G f" : "4 P G f") + " | 4 L + 18 P / (G N)";
  }
  return e;
}
}  // namespace

std::vector<StageStates> zero_stages(const EstimateInputs& inputs) {
  const auto p = static_cast<double>(inputs.parameters);
  const double gpus = static_cast<double>(inputs.gpus_per_node) * inputs.nodes;
  return {{0, 16 * p, "16 P"},
          {1, 4 * p + 12 * p / gpus, "4 P + 12 P / (G N)"},
          {2, 2 * p + 14 * p / gpus, "2 P + 14 P / (G N)"},
          {3, 16 * p / gpus, "16 P / (G N)"}};
}

std::vector<ZeroEstimate> zero_estimates(const EstimateInputs& inputs) {
  std::vector<ZeroEstimate> all = {stage2_on_cpu(inputs), stage2_on_gpu(inputs, false),
                                   stage2_on_gpu(inputs, true)};
  for (const auto& [parameters, optimizer] :
       {std::pair{true, true}, std::pair{false, true}, std::pair{false, false}}) {
    for (const bool zero_init : {true, false})
      all.push_back(stage3(inputs, parameters, optimizer, zero_init));
  }
  return all;
}
}  // namespace headrace::tools
