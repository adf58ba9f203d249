// SPDX-License-Identifier: Apache-2.0
// advice.hpp: finds the single change that helps most, by planning with each.
#pragma once
#include <string>
#include <vector>

#include "plan/scenario.hpp"

namespace headrace::tools {
struct Change {
  std::string text;    // "headrace.moments=bf16 (other results)"
  double speedup = 0;  // in tokens per second
  double step_seconds = 0;
};
// Those that fit, the most helpful first.
std::vector<Change> changes_of(Planning& planning, const Scenario& scenario,
                               const Outcome& outcome);

// What would make a scenario fit that does not: the first that does of checkpointing, a smaller
// micro-batch, less prefetch, smaller tiles, the budget "auto", NVMe for what is not there and
// smaller moments; else more nodes, the first three together, both, and these with shorter
// sequences. "": none of it.
std::string smallest_change(Planning& planning, const Scenario& scenario);
}  // namespace headrace::tools
