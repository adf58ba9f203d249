// SPDX-License-Identifier: Apache-2.0
// scenario.hpp: one model on one machine with one set of settings: does it fit, and what does a
// step take.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headrace/settings.hpp"
#include "partition/partition.hpp"
#include "plan/cost.hpp"
#include "plan/machines.hpp"
#include "plan/work.hpp"
#include "residency/plan.hpp"

namespace headrace::tools {
struct Scenario {
  std::shared_ptr<const PlannedModel> model;  // one rank's slice, with tensor parallelism
  Machine machine;
  Settings settings;
  std::uint32_t sequence = 2048;  // tokens
  std::uint32_t batch = 1;        // sequences per micro-batch and rank
  std::uint32_t micro_batches = 1;
  Activations activations = Activations::kKept;
  std::uint32_t nodes = 1;
  std::uint32_t cpu_ranks = 1;  // of a node without GPUs

  bool checkpointing() const { return activations != Activations::kKept; }
  bool saves_in_host_memory() const {
    return activations == Activations::kCheckpointedInHostMemory;
  }
  std::uint32_t ranks_per_node() const { return on_cpu() ? cpu_ranks : machine.gpus; }
  std::uint32_t ranks() const { return ranks_per_node() * nodes; }
  // Those that compute on data of their own, and have one whole model among them.
  std::uint32_t data_parallel() const { return ranks() / model->tensor_parallel; }
  bool on_cpu() const { return machine.gpus == 0; }
  // The dtype that the settings ask for. A model's file may have a different one, which does not
  // matter for training.
  DType dtype() const { return settings.parameter_dtype().value_or(DType::kBf16); }
  // The settings' batch, and what they leave open of it.
  void take_batch() {
    settings.resolve_batch(data_parallel(), 1);
    batch = *settings.train_micro_batch_size_per_gpu;
    micro_batches = settings.gradient_accumulation_steps;
  }
  double tokens() const { return static_cast<double>(batch) * sequence; }  // of a micro-batch
  double tokens_per_step() const { return tokens() * micro_batches * data_parallel(); }
};

struct Outcome {
  std::string refusal;     // "": it fits
  double activations = 0;  // bytes where the model computes
  double saved = 0;        // ... and of those that wait in host memory for backward
  // Of one rank, also where drives or GPUs are too small; empty where no plan could be made.
  std::optional<residency::Plan> plan;
  Prediction prediction;

  bool fits() const { return refusal.empty(); }
  // 0 where a step takes no time.
  double tokens_per_second(const Scenario& of) const {
    return prediction.step_seconds > 0 ? of.tokens_per_step() / prediction.step_seconds : 0;
  }
};

// Plans many variants of one model: what they share is computed once.
class Planning {
 public:
  Outcome evaluate(const Scenario& scenario, Spans spans = Spans::kNone);
  // Whether it fits; without planning where the floor alone says that it does not.
  bool fits(const Scenario& scenario);
  // How many plans were made.
  std::uint32_t plans() const noexcept { return plans_; }

 private:
  const partition::Partition& partition_of(const Scenario& scenario);
  std::shared_ptr<const PlannedModel> model_;
  std::shared_ptr<const partition::Partition> partition_;
  std::uint32_t plans_ = 0;
};

// Why no plan can fit: gradients stay in host memory, and what is on no drive lies there too. "":
// it may.
std::string floor_refusal(const Scenario& scenario);

// 2^63 where there are more: activations of what nobody can train.
std::uint64_t whole_bytes(double bytes);

// The machine's figures that a plan of it uses, and has.
std::vector<FigureName> used_figures(const Scenario& scenario);

// One rank's share of its node.
Rates rates_of(const Scenario& scenario);
}  // namespace headrace::tools
