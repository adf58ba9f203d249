// SPDX-License-Identifier: Apache-2.0
// report_json.cpp: a plan as JSON.
#include "plan/report_json.hpp"

#include <algorithm>

namespace headrace::tools {
namespace {
constexpr double kTellApart = 2000;  // of a picture's width

Json phase_json(const PhaseCost& phase) {
  Json json = {{"seconds", phase.seconds}, {"bound_by", name_of(phase.bound())}};
  for (std::size_t l = 0; l < kStepLanes; ++l)
    json["busy_seconds"][name_of(static_cast<StepLane>(l))] = phase.busy[l];
  return json;
}

// Of each lane, in the order of time; joined where no picture could tell them apart.
Json timeline_json(const PlanResult& r) {
  const std::vector<Span>& spans = r.outcome.prediction.spans;
  double end = 0;
  for (const Span& span : spans) end = std::max(end, span.end);
  std::vector<Span> joined;
  for (std::size_t l = 0; l < kStepLanes; ++l) {
    const std::size_t first = joined.size();
    for (const Span& span : spans) {
      if (span.lane != static_cast<StepLane>(l)) continue;
      if (joined.size() > first && span.begin - joined.back().end < end / kTellApart) {
        joined.back().end = std::max(joined.back().end, span.end);
      } else {
        joined.push_back(span);
      }
    }
  }
  Json json = Json::array();
  for (const Span& span : joined) {
    json.push_back({{"lane", name_of(span.lane)},
                    {"first_group", r.scenario.model->groups[span.group].group.name},
                    {"begin_seconds", span.begin},
                    {"end_seconds", span.end}});
  }
  return json;
}

Json store_json(const PlanResult& r) {
  const Prediction& p = r.outcome.prediction;
  const std::uint64_t every = r.outcome.plan->commit_every;
  return {{"name", r.scenario.settings.store},
          {"text", store_text(r)},
          {"bytes", r.outcome.plan->report.nvme_bytes},
          {"commit_every_steps", every},
          {"commit_written_bytes", p.commit.written_bytes},
          {"commit_seconds", p.commit.seconds},
          {"waited_seconds_per_step", p.commit.waited_seconds},
          {"kill_loses_steps", every},
          {"kill_loses_seconds", static_cast<double>(every) * p.step_seconds}};
}

Json prediction_json(const PlanResult& r) {
  const Prediction& p = r.outcome.prediction;
  const Wear wear = wear_of(r);
  return {
      {"step_seconds", p.step_seconds},
      {"tokens_per_second", r.outcome.tokens_per_second(r.scenario)},
      {"bound_by", name_of(p.bound)},
      {"forward", phase_json(p.forward)},
      {"backward", phase_json(p.backward)},
      {"update", phase_json(p.update)},
      {"updates_on_device", p.updates_on_device},
      {"hidden_seconds", p.hidden_seconds},
      {"free_tokens_per_micro_batch", p.free_tokens},
      {"nvme_read_bytes_per_step", p.nvme_read_bytes},
      {"nvme_written_bytes_per_step", p.nvme_written_bytes},
      {"written_bytes_per_drive_and_day", wear.bytes_per_day},
      {"drive_years", wear.years > 0 ? Json(wear.years) : Json()},
      {"network_bytes_per_step", p.network_bytes},
      {"sent_bytes_per_step", p.sent_bytes},
      {"most_sent_bytes_per_step", p.most_sent_bytes},
      {"sent_to_other_nodes_bytes_per_step",
       r.outcome.plan->node_ranks + r.outcome.plan->reduce_ranks > 0 ? Json(p.sent_to_other_nodes)
                                                                     : Json()},
      {"timeline", timeline_json(r)}};
}

Json scenario_json(const Scenario& s) {
  Json rates = Json::object();
  for (const FigureName& name : used_figures(s)) {
    const Figure& figure = s.machine.*name.figure;
    rates[name.name] = {{"value", figure.value}, {"unit", name.unit}, {"source", figure.source}};
  }
  return {{"model",
           {{"name", s.model->name},
            {"source", s.model->source},
            {"parameters", s.model->parameters},
            {"frozen_parameters", s.model->frozen_parameters},
            {"groups", s.model->groups.size()}}},
          {"machine",
           {{"name", s.machine.name},
            {"source", s.machine.source},
            {"gpus", s.machine.gpus},
            {"cpus", s.machine.cpus},
            {"gpu_memory_bytes", s.machine.gpu_memory_bytes},
            {"host_bytes", s.machine.host_bytes},
            {"nvme_bytes", s.machine.nvme_bytes},
            {"drives", s.machine.drives},
            {"rates_of_one_node", rates}}},
          {"nodes", s.nodes},
          {"ranks", s.ranks()},
          {"sequence", s.sequence},
          {"batch", s.batch},
          {"micro_batches", s.micro_batches},
          {"checkpointing", s.checkpointing()},
          {"checkpoints_in_host_memory", s.saves_in_host_memory()},
          {"tensor_parallel", s.model->tensor_parallel}};
}
}  // namespace

Json plan_json(const PlanResult& r) {
  Json json = scenario_json(r.scenario);
  json["fits"] = r.outcome.fits();
  json["summary"] = first_line(r);
  json["notes"] = notes_of(r);
  json["warnings"] = r.scenario.settings.warnings;
  if (!r.outcome.fits()) {
    json["refusal"] = r.outcome.refusal;
    json["smallest_change"] = r.smallest_change;
  }
  json["activation_bytes_estimated"] = r.outcome.activations;
  json["activation_bytes_in_host_memory_estimated"] = r.outcome.saved;
  if (!r.outcome.plan) return json;
  const PlanReport& report = r.outcome.plan->report;
  Json rows = Json::array();
  for (const PlanRow& row : report.rows)
    rows.push_back({{"what", row.what}, {"tier", row.tier}, {"bytes", row.bytes}});
  json["plan_of_one_rank"] = {{"rows", rows},
                              {"host_bytes", report.host_bytes},
                              {"device_bytes", report.device_bytes},
                              {"nvme_bytes", report.nvme_bytes},
                              {"save_bytes", report.save_bytes},
                              {"load_bytes", report.load_bytes},
                              {"host_budget_bytes", report.host_budget_bytes},
                              {"smallest_host_bytes", report.smallest_host_bytes},
                              {"resident_share_of_parameters", report.resident_share_of_parameters},
                              {"resident_share_of_state", report.resident_share_of_state},
                              {"deferred_updates", report.deferred_updates},
                              {"update_slots", r.outcome.plan->update_slots},
                              {"gather_slots", r.outcome.plan->gather_slots}};
  json["prediction_of_one_rank"] = prediction_json(r);
  if (r.outcome.plan->durable()) json["prediction_of_one_rank"]["store"] = store_json(r);
  json["changes"] = Json::array();
  for (const Change& change : r.changes)
    json["changes"].push_back({{"change", change.text},
                               {"tokens_per_second_ratio", change.speedup},
                               {"step_seconds", change.step_seconds}});
  return json;
}

Json steps_by_batch_json(const PlanResult& r, Planning& planning) {
  Json json = Json::array();
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0}) {
    const double batch = r.scenario.batch * factor;
    if (batch < 1) continue;
    Scenario tried = r.scenario;
    tried.batch = static_cast<std::uint32_t>(batch);
    const Outcome outcome = planning.evaluate(tried);
    if (!outcome.fits()) break;
    const Prediction& p = outcome.prediction;
    json.push_back({{"tokens_per_micro_batch", tried.tokens()},
                    {"step_seconds", p.step_seconds},
                    {"compute_seconds",
                     p.forward.of(StepLane::kCompute) + p.backward.of(StepLane::kCompute)}});
  }
  return json;
}
}  // namespace headrace::tools
