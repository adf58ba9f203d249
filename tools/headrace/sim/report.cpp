// SPDX-License-Identifier: Apache-2.0
#include "sim/report.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "plan/report.hpp"
#include "plan/report_json.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
// The first that fits, with which the others are compared.
const World* first_fitting(const std::vector<World>& worlds) {
  for (const World& world : worlds)
    if (world.fits()) return &world;
  return nullptr;
}

const World* last_fitting(const std::vector<World>& worlds) {
  const auto found = std::ranges::find_if(worlds.rbegin(), worlds.rend(), &World::fits);
  return found == worlds.rend() ? nullptr : &*found;
}

// Tokens per second and rank, over those of `first`.
double scaling(const World& world, const World& first) {
  return world.tokens_per_second() / world.scenario.ranks() /
         (first.tokens_per_second() / first.scenario.ranks());
}

std::string bits_text(double bits) {
  return bits > 0 ? number_text(bits / 1e9) + " Gbit/s" : std::string("-");
}

std::string row_text(const World& world, const World& first) {
  const Scenario& s = world.scenario;
  const Prediction& p = world.outcome.prediction;
  const PlanReport& report = world.outcome.plan->report;
  return fmt::format(
      "  {:>5} {:>6} {:>10} {:>13} {:>9} {:>8} {:>10} {:>10} {:>14} {:>14}  {}\n", s.nodes,
      s.ranks(), seconds_text(p.step_seconds), number_text(world.tokens_per_second()),
      number_text(world.flops_per_second() / 1e12), fmt::format("{:.3f}", scaling(world, first)),
      base::format_bytes(report.host_bytes), base::format_bytes(report.device_bytes),
      bits_text(world.network_by_rule), bits_text(world.network_wanted),
      p.bound == Bound::kNetwork && s.nodes == 1 ? "the node's own ranks" : name_of(p.bound));
}

std::string heading(const Scenario& s) {
  std::string text =
      fmt::format("{} ({}): {} parameters on {} ({})\n", s.model->name, s.model->source,
                  grouped(s.model->parameters), s.machine.name, s.machine.source);
  text += fmt::format("{} micro-batch{} of {} x {} tokens a step and {}{}\n", s.micro_batches,
                      s.micro_batches == 1 ? "" : "es", s.batch, s.sequence,
                      s.model->tensor_parallel > 1
                          ? fmt::format("{} ranks of tensor parallelism", s.model->tensor_parallel)
                          : std::string("rank"),
                      s.saves_in_host_memory() ? ", checkpoints in host memory"
                      : s.checkpointing()      ? ", checkpointing"
                                               : "");
  for (const std::string& warning : s.settings.warnings) text += "warning: " + warning + "\n";
  return text;
}

PlanResult plan_of(const World& world) { return {world.scenario, world.outcome, {}, ""}; }

std::string notes_text(const World& world, const char* indent = "") {
  std::string text;
  for (const std::string& note : notes_of(plan_of(world))) text += indent + note + "\n";
  return text;
}
}  // namespace

std::string worlds_text(const std::vector<World>& worlds) {
  const World* const first = first_fitting(worlds);
  std::string text = heading(worlds.front().scenario);
  text += "a simulation: docs/tools.md says what it was compared with\n";
  if (first == nullptr) text += notes_text(worlds.front());
  text +=
      "\n  nodes  ranks       step      tokens/s    Tflop/s  scaling       host     device"
      "    48 P/T rule        network  bound by\n"
      "                                          a rank             a rank     a rank"
      "    into a node  that is enough\n";
  for (const World& world : worlds) {
    text += world.fits() ? row_text(world, *first)
                         : fmt::format("  {:>5} {:>6}  does not fit: {}\n", world.scenario.nodes,
                                       world.scenario.ranks(), short_refusal(world));
  }
  if (const World* const last = last_fitting(worlds)) {
    const PlanResult result = plan_of(*last);
    text += fmt::format("\nWith {} node{}\n{}  Wear     {}\n  Network  {}\n", last->scenario.nodes,
                        last->scenario.nodes == 1 ? "" : "s", notes_text(*last, "  "),
                        wear_text(result), network_text(result));
  }
  return text + "\n" + rates_text(worlds.back().scenario);
}

Json worlds_json(const std::vector<World>& worlds) {
  const World* const first = first_fitting(worlds);
  Json all = Json::array();
  for (const World& world : worlds) {
    Json json = plan_json(plan_of(world));
    for (const char* const of_changes : {"changes", "summary", "smallest_change"})
      json.erase(of_changes);
    if (world.fits()) {
      json["flops_per_rank_and_second"] = world.flops_per_second();
      json["scaling"] = scaling(world, *first);
      json["network_bits_per_second_by_rule"] = world.network_by_rule;
      json["network_bits_per_second_that_is_enough"] = world.network_wanted;
    }
    all.push_back(std::move(json));
  }
  return {{"worlds", std::move(all)}};
}

std::string published_text(const PublishedResult& result) {
  std::string text = fmt::format("  {:<48}{:>18}{:>12}{:>8}\n", "ZeRO-Infinity, arXiv 2104.07857",
                                 "published", "simulated", "ratio");
  for (const PublishedPoint& point : result.points) {
    const std::string published =
        point.relation + (point.relation.empty() ? "" : " ") + number_text(point.published);
    text += fmt::format("  {:<48}{:>18}", point.what, published);
    text += point.simulated > 0 ? fmt::format("{:>12}{:>8.3f}  {}\n", number_text(point.simulated),
                                              point.ratio(), point.unit)
                                : fmt::format("  refused: {}\n", point.refusal);
  }
  text += "\nTaken as given\n";
  for (const auto& [name, value] : result.assumptions)
    text += fmt::format("  {:<15} {}\n", name, value);
  return text;
}

Json published_json(const PublishedResult& result) {
  Json points = Json::array(), assumed = Json::object();
  for (const PublishedPoint& point : result.points) {
    Json json = {{"what", point.what},
                 {"unit", point.unit},
                 {"published", point.published},
                 {"relation", point.relation}};
    if (point.simulated > 0) {
      json["simulated"] = point.simulated;
      json["ratio"] = point.ratio();
    } else {
      json["refusal"] = point.refusal;
    }
    points.push_back(std::move(json));
  }
  for (const auto& [name, value] : result.assumptions) assumed[name] = value;
  return {{"published", std::move(points)}, {"taken_as_given", std::move(assumed)}};
}
}  // namespace headrace::tools
