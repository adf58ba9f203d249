// SPDX-License-Identifier: Apache-2.0
// worlds.hpp: the same training in worlds of several sizes, simulated by the planner's model of a
// step (plan/cost.hpp).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/scenario.hpp"

namespace headrace::tools {
struct World {
  Scenario scenario;
  Outcome outcome;
  // Of one rank and step, what it computes, with what is computed again for backward.
  double flops = 0;
  // Bits per second into a node. `by_rule`: 48 bits per parameter that is trained, which are 3
  // transfers of 2 bytes, and 32 per frozen one, while a step computes; 0 with one node.
  double network_by_rule = 0;
  // The least with which a step takes at most kUnnoticed longer than over a network that takes no
  // time; 0 with one node.
  double network_wanted = 0;

  bool fits() const { return outcome.fits(); }
  double flops_per_second() const { return flops / outcome.prediction.step_seconds; }
  double tokens_per_second() const { return outcome.tokens_per_second(scenario); }
};
inline constexpr double kUnnoticed = 0.02;

// Every rank's step takes as long as that of rank 0, which has the most blocks of parameters.
World world_of(Planning& planning, const Scenario& scenario);

// Why it does not fit, without the plan's table.
std::string short_refusal(const World& world);

// `scenario`, whose batch is taken for each number of ranks, on each of these numbers of nodes.
// One that the planner rejects does not fit. Throws Error kInterrupted after a signal.
std::vector<World> worlds_of(Planning& planning, Scenario scenario,
                             const std::vector<std::uint32_t>& nodes);

// 1, 2, 4, ... nodes, up to so many ranks.
std::vector<std::uint32_t> doubling_nodes(const Scenario& scenario, std::uint32_t most_ranks);
}  // namespace headrace::tools
