// SPDX-License-Identifier: Apache-2.0
// report.cpp: an estimation as text and as JSON.
#include <fmt/core.h>

#include "base/units.hpp"
#include "estimate/estimate.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
double gib(double bytes) { return bytes / static_cast<double>(base::kGiB); }
double gib(std::uint64_t bytes) { return gib(static_cast<double>(bytes)); }

std::string switches_of(const ZeroEstimate& e) {
  const auto device = [](bool on_cpu) { return on_cpu ? "cpu" : "none"; };
  if (e.stage == 2) {
    return fmt::format("offload_optimizer={}{}", device(e.optimizer_on_cpu),
                       e.versions.empty() ? "" : " (DeepSpeed " + e.versions + ")");
  }
  return fmt::format("offload_param={:<4} offload_optimizer={:<4} zero_init={}",
                     device(e.parameters_on_cpu), device(e.optimizer_on_cpu), e.zero_init ? 1 : 0);
}

std::string what_text(const Estimation& e) {
  const EstimateInputs& in = e.inputs;
  std::string text =
      e.model ? fmt::format("{} ({})\n", e.model->name, e.model->source) : std::string();
  text += fmt::format("{} parameters", grouped(in.parameters));
  if (in.largest_layer > 0)
    text += fmt::format("; the largest layer has {}", grouped(in.largest_layer));
  if (e.model) {
    const ModelGroup& group = e.model->largest_group();
    text +=
        fmt::format(" ({}), the largest group {}{}", e.model->largest_layer().name,
                    grouped(group.elements()), group.name.empty() ? "" : " (" + group.name + ")");
  }
  return text + fmt::format("\n{} node{}, {} GPU{} each. GiB, without activations.\n\n", in.nodes,
                            in.nodes == 1 ? "" : "s", in.gpus_per_node,
                            in.gpus_per_node == 1 ? "" : "s");
}

// In GB of 10^9 bytes, as the paper has them.
std::string stages_text(const Estimation& e) {
  std::string text =
      "The states of ZeRO's stages on a GPU, nothing offloaded: 2 bytes of weight, 2 of gradient "
      "and 12 of\nmaster and moments per parameter; GB of 10^9 bytes\n";
  for (const StageStates& one : e.stages) {
    text += fmt::format("  ZeRO-{} {:>75.1f}  {}\n", one.stage, 1e-9 * one.gpu_bytes, one.formula);
  }
  return text + "\n";
}

std::string estimates_text(const Estimation& e) {
  if (e.estimates.empty())
    return "No estimates of DeepSpeed's: they take the largest layer. Give --largest-layer.\n\n";
  std::string text = fmt::format(
      "DeepSpeed's estimators, host memory times {:g} for what is not counted\n"
      "  {:<61} {:>10} {:>9}  formula\n",
      e.inputs.buffer_factor, "", "per node", "per GPU");
  for (const ZeroEstimate& one : e.estimates) {
    text += fmt::format("  ZeRO-{} {:<54} {:>10.2f} {:>9.2f}  {}\n", one.stage, switches_of(one),
                        gib(one.host_bytes), gib(one.gpu_bytes), one.formula);
  }
  return text +
         "  P parameters, L of the largest layer, G GPUs per node, N nodes, f the factor\n\n";
}

std::string plans_text(const Estimation& e) {
  std::string text = fmt::format(
      "Headrace's plan, which is what an engine allocates: {}\n"
      "  {:<61} {:>10} {:>9} {:>10}  NVMe read + written per step\n",
      e.state, "", "per node", "per GPU", "NVMe");
  for (const Planned& one : e.plans) {
    text += fmt::format("  {:<61} {:>10.2f} {:>9.2f} {:>10.2f}  {:.2f}\n", one.where,
                        gib(one.host_bytes), gib(one.gpu_bytes), gib(one.nvme_bytes),
                        gib(one.nvme_bytes_per_step));
  }
  return text;
}

Json model_json(const Model& model) {
  return {{"name", model.name},
          {"source", model.source},
          {"groups", model.groups.size()},
          {"largest_layer", model.largest_layer().name},
          {"largest_group", model.largest_group().name},
          {"largest_group_parameters", model.largest_group().elements()}};
}

Json estimate_json(const ZeroEstimate& one) {
  Json row = {{"stage", one.stage},
              {"offload_optimizer", one.optimizer_on_cpu ? "cpu" : "none"},
              {"host_bytes_per_node", one.host_bytes},
              {"bytes_per_gpu", one.gpu_bytes},
              {"formula", one.formula}};
  if (!one.versions.empty()) row["versions"] = one.versions;
  if (one.stage == 3) {
    row["offload_param"] = one.parameters_on_cpu ? "cpu" : "none";
    row["zero_init"] = one.zero_init;
  }
  return row;
}

Json plan_json(const Planned& one) {
  Json rows = Json::array();
  for (const PlanRow& row : one.rows)
    rows.push_back({{"what", row.what}, {"tier", row.tier}, {"bytes", row.bytes}});
  return {{"where", one.where},
          {"host_bytes_per_node", one.host_bytes},
          {"bytes_per_gpu", one.gpu_bytes},
          {"nvme_bytes_per_node", one.nvme_bytes},
          {"nvme_bytes_per_step", one.nvme_bytes_per_step},
          {"rows_of_one_rank", rows}};
}
}  // namespace

std::string estimation_text(const Estimation& e) {
  std::string text = what_text(e) + stages_text(e) + estimates_text(e);
  if (!e.no_plan.empty()) return text + "No plan of ours: " + e.no_plan + ".\n";
  if (e.plans.empty())
    return text + "No plan of ours: it takes shapes. Name a model instead of --parameters.\n";
  return text + plans_text(e);
}

Json estimation_json(const Estimation& e) {
  Json json = {{"parameters", e.inputs.parameters},
               {"largest_layer_parameters", e.inputs.largest_layer},
               {"nodes", e.inputs.nodes},
               {"gpus_per_node", e.inputs.gpus_per_node},
               {"buffer_factor", e.inputs.buffer_factor}};
  if (e.model) json["model"] = model_json(*e.model);
  json["zero_stages"] = Json::array();
  for (const StageStates& one : e.stages) {
    json["zero_stages"].push_back(
        {{"stage", one.stage}, {"bytes_per_gpu", one.gpu_bytes}, {"formula", one.formula}});
  }
  json["deepspeed"] = Json::array();
  for (const ZeroEstimate& one : e.estimates) json["deepspeed"].push_back(estimate_json(one));
  if (!e.no_plan.empty()) json["no_plan"] = e.no_plan;
  json["headrace"] = Json::array();
  for (const Planned& one : e.plans) json["headrace"].push_back(plan_json(one));
  return json;
}
}  // namespace headrace::tools
