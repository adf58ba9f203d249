// SPDX-License-Identifier: Apache-2.0
// estimate.hpp: `headrace estimate`: the estimates of memory that people know, beside the plan.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "estimate/planned.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
struct Estimation {
  EstimateInputs inputs;
  std::optional<Model> model;  // without one no plan can be made
  std::vector<StageStates> stages;
  std::vector<ZeroEstimate> estimates;  // none without the largest layer
  std::vector<Planned> plans;
  std::string no_plan;  // why there are none for the model, "": there are
  std::string state;    // "adamw, f32 moments, split masters"; with a store, that it has one
};
std::string estimation_text(const Estimation& estimation);
Json estimation_json(const Estimation& estimation);

// argv[0] is its name. Returns the exit code.
int estimate(int argc, const char* const* argv);
}  // namespace headrace::tools
