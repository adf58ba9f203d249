// SPDX-License-Identifier: Apache-2.0
#include "plan/scenario.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "headrace/cuda.hpp"
#include "headrace/error.hpp"
#include "model/store_bytes.hpp"

namespace headrace::tools {
namespace {
std::vector<partition::GroupShape> shapes_of(const PlannedModel& model, DType dtype) {
  std::vector<partition::GroupShape> shapes;
  shapes.reserve(model.groups.size());
  for (const PlannedGroup& group : model.groups) {
    partition::GroupShape& shape = shapes.emplace_back();
    for (std::size_t i = 0; i < group.frozen.size(); ++i) {
      const ModelParameter& parameter = group.group.parameters[i];
      shape.parameters.push_back({parameter.name, dtype, parameter.shape, {}, group.frozen[i]});
    }
  }
  return shapes;
}

StepWork workload_of(const Scenario& s) {
  StepWork work;
  work.groups = work_of(*s.model, s.tokens(), s.sequence);
  work.tokens = s.tokens();
  work.micro_batches = s.micro_batches;
  work.checkpointing = s.checkpointing();
  work.saved_in_host_memory = s.saves_in_host_memory();
  work.prefetch_groups = s.settings.prefetch_groups;
  work.ranks_ahead = s.settings.rank_agreement == RankOrder::kEach ? 0 : s.settings.ranks_ahead;
  work.checksums = s.settings.checksums == Checksums::kOn;
  work.device_shares_host_memory = s.on_cpu();
  work.update_threads = s.settings.update_threads > 0
                            ? s.settings.update_threads
                            : std::max(1u, s.machine.cpus / (s.on_cpu() ? s.ranks_per_node() : 1));
  work.machines = s.nodes;
  work.tensor_parallel = s.model->tensor_parallel;
  return work;
}

std::string node_text(const Scenario& s, std::uint64_t bytes) {
  return fmt::format(
      "{} of {}{}", base::format_bytes(bytes), s.machine.name,
      s.ranks_per_node() > 1 ? fmt::format(", shared by {} ranks", s.ranks_per_node()) : "");
}

// A table of so many takes longer than what it says is worth where the floor alone refuses.
constexpr double kManyTiles = 1 << 17;

double tiles_of_rank(const Scenario& s) {
  double tiles = 0;
  for (const PlannedGroup& group : s.model->groups)
    tiles += tiles_of(group.group.elements(), s.settings.tile_elements, s.data_parallel());
  return tiles;
}

// Of memory the plan is refused by the planner itself; this is what it does not know.
std::string refusal_of(const Scenario& s, const residency::Plan& plan, double activations) {
  const std::uint64_t nvme = plan.report.nvme_bytes * s.ranks_per_node();
  if (s.machine.nvme_bytes > 0 && nvme > s.machine.nvme_bytes) {
    return fmt::format("{} a node are to be on NVMe, and there are {}", base::format_bytes(nvme),
                       node_text(s, s.machine.nvme_bytes));
  }
  const double device = static_cast<double>(plan.report.device_bytes) + activations;
  if (!s.on_cpu() && s.machine.gpu_memory_bytes > 0 &&
      device > static_cast<double>(s.machine.gpu_memory_bytes)) {
    return fmt::format("a GPU is to hold {} and activations of about {}, and it has {}",
                       base::format_bytes(plan.report.device_bytes),
                       base::format_bytes(whole_bytes(activations)),
                       base::format_bytes(s.machine.gpu_memory_bytes));
  }
  return "";
}

std::uint64_t gpu_left_bytes(const Scenario& s, double activations) {
  return s.machine.gpu_memory_bytes -
         std::min(s.machine.gpu_memory_bytes, whole_bytes(activations));
}

std::uint64_t registration_bytes(const Scenario& s) {
  std::vector<const ModelGroup*> groups;
  for (const PlannedGroup& group : s.model->groups) groups.push_back(&group.group);
  return tools::registration_bytes(s.settings, groups);
}

residency::PlanInputs inputs_of(const Scenario& s, const partition::Partition& partition,
                                double activations) {
  residency::PlanInputs in;
  in.partition = &partition;
  in.settings = s.settings;
  in.settings.gradient_accumulation_steps = s.micro_batches;
  if (in.settings.nvme_paths.empty()) in.settings.nvme_paths = {"NVMe"};
  in.groups.resize(s.model->groups.size());
  for (residency::GroupTraits& group : in.groups) group.repeated_gradients = s.micro_batches > 1;
  in.device_shares_host_memory = s.on_cpu();
  if (!s.on_cpu()) in.device_overhead = cuda_overhead();
  in.device_left_bytes = gpu_left_bytes(s, activations);
  in.bookkeeping_bytes = partition.bookkeeping_bytes();
  in.commit_bytes = commit_bytes(in.settings, partition);
  in.registration_bytes = registration_bytes(s);
  in.machine_limit_source = node_text(s, s.machine.host_bytes);
  return in;
}
}  // namespace

std::uint64_t whole_bytes(double bytes) {
  constexpr double kMost = 0x1p63;
  return static_cast<std::uint64_t>(std::min(bytes, kMost));
}

std::vector<FigureName> used_figures(const Scenario& s) {
  std::vector<FigureName> used;
  for (const FigureName& name : figure_names()) {
    if ((s.machine.*name.figure).value > 0 &&
        is_used(name, s.settings, s.ranks(), s.nodes, s.on_cpu()))
      used.push_back(name);
  }
  return used;
}

Rates rates_of(const Scenario& s) {
  const Machine& m = s.machine;
  const double ranks = s.ranks_per_node();
  return {.nvme_read = m.nvme_read.value / ranks,
          .nvme_write = m.nvme_write.value / ranks,
          .nvme_mixed = m.nvme_mixed.value / ranks,
          .memory = m.memory.value / ranks,
          .update = m.update.value / ranks,
          .update_checked = m.update_checked.value / ranks,
          .verify = m.verify.value / ranks,
          .flops = s.on_cpu() ? m.flops.value / ranks : m.flops.value,
          .backward_flops = s.on_cpu() ? m.backward_flops.value / ranks : m.backward_flops.value,
          .link = s.on_cpu() ? 0 : m.link.value,
          .network = m.network.value / ranks,
          .peers = m.peers.value,
          .call = m.call.value,
          .transport = s.on_cpu() ? m.transport.value : 0,
          .flush = m.flush.value};
}

std::string floor_refusal(const Scenario& s) {
  const double trained =
      static_cast<double>(s.model->parameters - s.model->frozen_parameters) / s.ranks();
  const double weights = 2 * static_cast<double>(s.model->parameters) / s.ranks();
  const double gradients = trained * (s.micro_batches > 1 ? 4 : 2);
  const optimizer_cpu::StateStreams streams = optimizer_cpu::state_streams(s.settings, s.dtype());
  double state = 0;
  for (const optimizer_cpu::StateStream& stream : streams.all())
    state += trained * stream.bytes_per_scale / base::kScaleElements;
  const auto host = static_cast<double>(s.machine.host_bytes) / s.ranks_per_node();
  const auto nvme = static_cast<double>(s.machine.nvme_bytes) / s.ranks_per_node();
  const auto text = [](double bytes) { return base::format_bytes(whole_bytes(bytes)); };
  if (host > 0 && gradients > host) {
    return fmt::format("gradients alone, which stay in host memory, take {} a rank, and it has {}",
                       text(gradients), text(host));
  }
  const double changing = 2 * trained + state;
  const double store = s.settings.durable_every > 0 ? weights + state + changing : 0;
  if (nvme > 0 && store > nvme) {
    return fmt::format("a store takes {} a rank, twice what is trained, and it has {} of NVMe",
                       text(store), text(nvme));
  }
  if (host > 0 && nvme > 0 && weights + state + gradients > host + nvme) {
    return fmt::format(
        "weights, state and gradients take {} a rank, and it has {} of memory and {} "
        "of NVMe",
        text(weights + state + gradients), text(host), text(nvme));
  }
  return "";
}

bool Planning::fits(const Scenario& scenario) {
  return floor_refusal(scenario).empty() && evaluate(scenario).fits();
}

const partition::Partition& Planning::partition_of(const Scenario& s) {
  const std::uint64_t tile = s.settings.tile_elements;
  const bool same = partition_ && model_ == s.model && partition_->tile_elements == tile &&
                    partition_->world_size == s.data_parallel();
  if (!same) {
    model_ = s.model;
    // Blocks are dealt from rank 0 on: no rank has more of them.
    partition_ = std::make_shared<partition::Partition>(
        partition::make_partition(shapes_of(*s.model, s.dtype()), tile, 0, s.data_parallel()));
  }
  return *partition_;
}

// What a rank has of its node's memory beside activations; nothing, and why, where they leave none.
std::optional<std::uint64_t> memory_left(const Scenario& s, Outcome& outcome, std::string& source) {
  const std::uint64_t left = s.machine.host_bytes / s.ranks_per_node();
  const double there = s.on_cpu() ? outcome.activations : outcome.saved;
  if (left == 0 || there <= 0) return left;
  const std::uint64_t bytes = whole_bytes(there);
  if (bytes >= left) {
    outcome.refusal = fmt::format("activations in host memory are about {}, and memory is {}",
                                  base::format_bytes(bytes), source);
    return std::nullopt;
  }
  source += ", less activations";
  return left - bytes;
}

Outcome Planning::evaluate(const Scenario& s, Spans spans) {
  Outcome outcome;
  outcome.activations = activation_bytes(*s.model, s.tokens(), s.activations);
  if (s.saves_in_host_memory())
    outcome.saved = s.model->layers * checkpoint_bytes(*s.model, s.tokens());
  if (const double tiles = tiles_of_rank(s); tiles > kManyTiles) {
    outcome.refusal = floor_refusal(s);
    if (outcome.fits()) outcome.refusal = tiles_refusal(tiles, s.settings.tile_elements);
    if (!outcome.fits()) return outcome;
  }
  ++plans_;
  const partition::Partition& partition = partition_of(s);
  residency::PlanInputs in = inputs_of(s, partition, outcome.activations);
  const auto left = memory_left(s, outcome, in.machine_limit_source);
  if (!left) return outcome;
  in.machine_left_bytes = *left;
  try {
    outcome.plan = residency::make_plan(in);
  } catch (const Error& error) {
    if (error.code() != Code::kOutOfBudget) throw;
    outcome.refusal = error.what();
    return outcome;
  }
  outcome.refusal = refusal_of(s, *outcome.plan, outcome.activations);
  if (!outcome.fits() && outcome.plan->update_on == UpdateOn::kAuto) {
    Scenario by_cpu = s;
    by_cpu.settings.update_on = UpdateOn::kCpu;
    return evaluate(by_cpu, spans);
  }
  outcome.prediction = predict(*outcome.plan, partition, workload_of(s), rates_of(s), spans);
  outcome.plan->tiles = {};  // where each tile lies is all that this is not asked for
  return outcome;
}
}  // namespace headrace::tools
