// SPDX-License-Identifier: Apache-2.0
// scenario_options.hpp: the options that `headrace plan` and `headrace sim` share: a model, a
// machine, settings and a batch.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "plan/scenario.hpp"

namespace headrace::tools {
struct ScenarioOptions {
  static constexpr std::uint32_t kAllGpus = std::numeric_limits<std::uint32_t>::max();
  std::string model, machine, copy_json, settings;
  std::vector<std::string> set, frozen;
  std::uint32_t sequence = 0, batch = 0, accumulation = 0;  // 0: not given
  std::uint32_t gpus = kAllGpus, nodes = 1, cpu_ranks = 1, tensor_parallel = 1;
  double drive_tbw = 0;
  bool checkpointing = false, offload_checkpoints = false;
  std::vector<std::pair<std::string, double>> figures;  // rates given by name
};

// For a footer: the models and machines that have names.
std::string known_names_text();
// All but --nodes.
void add_scenario_options(CLI::App& app, ScenarioOptions& options);
// Throws command_line::Fault.
void check_scenario(const ScenarioOptions& options);
// Throws Error: what the options name is not there, or does not go together.
Scenario scenario_for(const ScenarioOptions& options);
// The same before take_batch(), for which a world's number of ranks counts.
Scenario scenario_without_batch(const ScenarioOptions& options);
}  // namespace headrace::tools
