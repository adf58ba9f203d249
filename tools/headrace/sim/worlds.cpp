// SPDX-License-Identifier: Apache-2.0
#include "sim/worlds.hpp"

#include <cmath>

#include "headrace/error.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
constexpr double kFast = 1e15;  // bytes per second that take no time

struct Computing {
  double flops = 0, seconds = 0;
};
// Of one rank and step; not what its CPU does for transfers and gradients.
Computing computing(const Scenario& s) {
  double forward = 0, backward = 0;
  for (const GroupWork& group : work_of(*s.model, s.tokens(), s.sequence)) {
    forward += group.forward_flops * (s.checkpointing() ? 2 : 1);
    backward += group.backward_flops;
  }
  const Rates rates = rates_of(s);
  return {s.micro_batches * (forward + backward),
          s.micro_batches * (forward / rates.flops + backward / rates.backward_flops)};
}

double step_with_network(Planning& planning, Scenario s, double rate) {
  check_signal();
  s.machine.network.value = rate;
  return planning.evaluate(s, Spans::kSeconds).prediction.step_seconds;
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
  if (world.fits() && world.outcome.prediction.step_seconds <= 0)
    world.outcome.refusal = "nothing is computed, moved or updated, so a step takes no time";
  if (!world.fits()) return world;
  const Computing computes = computing(scenario);
  world.flops = computes.flops;
  if (scenario.nodes == 1) return world;
  const PlannedModel& model = *scenario.model;
  const double bits = 48 * static_cast<double>(model.parameters - model.frozen_parameters) +
                      32 * static_cast<double>(model.frozen_parameters);
  if (computes.seconds > 0)
    world.network_by_rule = scenario.micro_batches * bits / computes.seconds;
  world.network_wanted = network_wanted(planning, scenario);
  return world;
}

std::string short_refusal(const World& world) {
  const std::string& whole = world.outcome.refusal;
  return whole.substr(0, std::min(whole.find("; nothing was"), whole.find('\n')));
}

std::vector<World> worlds_of(Planning& planning, Scenario scenario,
                             const std::vector<std::uint32_t>& nodes) {
  std::vector<World> worlds;
  for (const std::uint32_t count : nodes) {
    scenario.nodes = count;
    Scenario one = scenario;
    try {
      one.take_batch();
      worlds.push_back(world_of(planning, one));
    } catch (const Error& error) {
      if (error.code() == Code::kInterrupted) throw;
      worlds.push_back({.scenario = one, .outcome = {}});
      worlds.back().outcome.refusal = error.what();
    }
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
