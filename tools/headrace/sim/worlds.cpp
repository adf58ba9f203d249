// SPDX-License-Identifier: Apache-2.0
#include "sim/worlds.hpp"

#include <cmath>

namespace headrace::tools {
namespace {
constexpr double kFast = 1e15;  // bytes per second that take no time

double flops_of_rank(const Scenario& s) {
  double flops = 0;
  for (const GroupWork& group : work_of(*s.model, s.tokens(), s.sequence))
    flops += group.forward_flops * (s.checkpointing() ? 2 : 1) + group.backward_flops;
  return flops * s.micro_batches;
}

double step_with_network(Planning& planning, Scenario s, double rate) {
  s.machine.network.value = rate;
  return planning.evaluate(s).prediction.step_seconds;
}

double network_wanted(Planning& planning, const Scenario& s) {
  constexpr double kClose = 1.02;  // of the rate that is looked for
  const double most = step_with_network(planning, s, kFast) * (1 + kUnnoticed);
  double low = 1e6, high = kFast;
  while (high > low * kClose) {
    const double middle = std::sqrt(low * high);
    (step_with_network(planning, s, middle) <= most ? high : low) = middle;
  }
  return 8 * high;
}
}  // namespace

World world_of(Planning& planning, const Scenario& scenario) {
  World world{.scenario = scenario, .outcome = planning.evaluate(scenario)};
  if (!world.fits()) return world;
  world.flops = flops_of_rank(scenario);
  if (scenario.nodes == 1) return world;
  const Prediction& p = world.outcome.prediction;
  const double computes = p.forward.of(StepLane::kCompute) + p.backward.of(StepLane::kCompute);
  const double bits = 48 * static_cast<double>(scenario.model->parameters);
  world.network_by_rule = scenario.micro_batches * bits / computes;
  world.network_wanted = network_wanted(planning, scenario);
  return world;
}

std::string short_refusal(const World& world) {
  const std::string& whole = world.outcome.refusal;
  return whole.substr(0, whole.find("; nothing was"));
}

std::vector<World> worlds_of(Planning& planning, Scenario scenario,
                             const std::vector<std::uint32_t>& nodes) {
  std::vector<World> worlds;
  for (const std::uint32_t count : nodes) {
    scenario.nodes = count;
    worlds.push_back(world_of(planning, scenario));
  }
  return worlds;
}

std::vector<std::uint32_t> doubling_nodes(const Scenario& scenario, std::uint32_t most_ranks) {
  std::vector<std::uint32_t> nodes{1};
  while (2ULL * nodes.back() * scenario.ranks_per_node() <= most_ranks)
    nodes.push_back(2 * nodes.back());
  return nodes;
}
}  // namespace headrace::tools
