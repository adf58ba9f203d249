// SPDX-License-Identifier: Apache-2.0
// trained_model.hpp: an engine with N parameters in transformer-sized groups, and steps of it.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/parts.hpp"
#include "headrace/engine.hpp"
#include "watched.hpp"

namespace headrace::tools {
struct StepCost {
  double seconds = 0;          // of Engine::step
  double update_seconds = 0;   // of it: the tiles, after the norm is known
  double compute_seconds = 0;  // summed over update threads
  double cpu_seconds = 0;      // of the process
  double read_busy_seconds = 0, write_busy_seconds = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0;
};

// Groups of four bf16 matrices, 12.6 million parameters each; the last one has the rest.
void add_transformer_groups(Engine& engine, std::uint64_t parameters);

class TrainedModel {
 public:
  // Plans, allocates and loads.
  TrainedModel(const Settings& settings, std::uint64_t parameters,
               const engine::EngineParts& parts = {});
  // Gives every parameter a gradient, then measures one step.
  StepCost step();
  const Engine& engine() const { return engine_; }
  Engine& engine() { return engine_; }
  void close() { engine_.close(); }

 private:
  Engine engine_;
  Watched watched_;
  std::vector<std::uint16_t> gradient_;  // bf16, for the largest parameter
};
}  // namespace headrace::tools
