// SPDX-License-Identifier: Apache-2.0
// options.hpp: the options of `headrace bench optimizer`.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench_optimizer/cases.hpp"

namespace headrace::tools {
inline constexpr const char* kBenchOptimizerName = "headrace bench optimizer";

struct OptimizerBenchOptions {
  std::vector<Case> cases;  // each once
  std::uint64_t elements = 0;
  bool elements_given = false;
  double most_seconds = 60;  // of all of it
  std::uint32_t rounds = 15;
  std::optional<double> least_share;  // --require
  std::string json;                   // target; "": none
};

// Calls `run` with what the words say. Returns its exit code, or that of a refusal: kLacking where
// this CPU lacks an instruction set that was named.
int run_with_optimizer_bench_options(int argc, const char* const* argv,
                                     const std::function<int(const OptimizerBenchOptions&)>& run);
}  // namespace headrace::tools
