// SPDX-License-Identifier: Apache-2.0
// options.hpp: the options of `headrace bench copy`.
#pragma once
#include <optional>
#include <string>

#include "bench_copy/copy_contest.hpp"

namespace CLI {
class App;
}

namespace headrace::tools {
inline constexpr const char* kBenchCopyName = "headrace bench copy";

struct CopyBenchOptions {
  int gpu = 0;
  CopyContestOptions contest;
  bool sizes_given = false;
  std::optional<double> least_share;  // --require-share
  std::string json;                   // target; "": none
};

// As given; empty: not.
struct CopyBenchWords {
  std::string sizes, seconds, bytes, share;
};
void add_copy_options(CLI::App& app, CopyBenchOptions& options, CopyBenchWords& words);
// Throws command_line::Fault.
void finish_copy_options(CopyBenchOptions& options, const CopyBenchWords& words);
}  // namespace headrace::tools
