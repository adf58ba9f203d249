// SPDX-License-Identifier: Apache-2.0
// options.hpp: what `headrace bench optimizer` is asked to measure.
#pragma once
#include <cstdint>
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

struct ParsedOptimizerBenchOptions {
  std::optional<OptimizerBenchOptions> options;  // none: `text` is to be printed
  std::string text;                              // help, or what is wrong
  int exit_code = 0;                             // 0 help, 2 refused, 3 a set that this CPU lacks
  std::string json;                              // --json, found even where the rest does not parse
};
ParsedOptimizerBenchOptions parse_optimizer_bench_options(int argc, const char* const* argv);
}  // namespace headrace::tools
