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

// The smallest change that makes a scenario fit which does not. It is the first that suffices of:
// - checkpointing, a smaller micro-batch, less prefetch, smaller tiles, the budget "auto", NVMe for
//   what is not there, smaller moments;
// - more nodes, the first three of those together, both, and both with shorter sequences.
// "": none suffices.
std::string smallest_change(Planning& planning, const Scenario& scenario);
}  // namespace headrace::tools
