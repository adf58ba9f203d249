// SPDX-License-Identifier: Apache-2.0
// report.hpp: a plan and what its step takes, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "plan/advice.hpp"
#include "plan/scenario.hpp"

namespace headrace::tools {
struct PlanResult {
  Scenario scenario;
  Outcome outcome;
  std::vector<Change> changes;  // of a plan that fits
  std::string smallest_change;  // of one that does not
};

// Fits or not, seconds per step, what binds, the change that helps most.
std::string first_line(const PlanResult& result);
// The bytes to set in place of the budget "auto", which in a run would take what activations need;
// 0: none, "auto" will do.
std::uint64_t budget_for_auto(const PlanResult& result);
// A line each: what was not checked, what Headrace does not serve yet, the budget that a run needs.
std::vector<std::string> notes_of(const PlanResult& result);
std::string plan_text(const PlanResult& result);

// ---- figures that they share ----

struct Wear {
  double bytes_per_step = 0, bytes_per_day = 0;  // of one drive
  double years = 0;  // until the machine's drive_tbw are written; 0: not given, or never
};
Wear wear_of(const PlanResult& result);
// "0.0123", "41.2", "2,210": no exponent above 1; of those below 1000 so many digits.
std::string number_text(double number, int digits = 3);
std::string seconds_text(double seconds);  // "41.2 s", "230 ms", "3.4 h"
// A sentence about the batch from which on what can overlap is hidden.
std::string free_batch_text(const PlanResult& result);
std::string wear_text(const PlanResult& result);
// What the store takes, what a commit costs, and what a kill loses; for plans that have one.
std::string store_text(const PlanResult& result);
std::string network_text(const PlanResult& result);
// The node's figures that the scenario uses, a line each with its source.
std::string rates_text(const Scenario& scenario);
std::string activations_text(const PlanResult& result);
}  // namespace headrace::tools
