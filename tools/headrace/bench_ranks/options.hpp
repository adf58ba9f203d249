// SPDX-License-Identifier: Apache-2.0
// options.hpp: the options of `headrace bench ranks`.
#pragma once
#include <cstdint>
#include <string>

#include "bench_ranks/rank_contest.hpp"
#include "headrace/launch.hpp"

namespace CLI {
class App;
}

namespace headrace::tools {
inline constexpr const char* kBenchRanksName = "headrace bench ranks";

struct RankBenchOptions {
  RankContestOptions contest;
  bool sizes_given = false;
  LaunchChoice ranks = LaunchChoice::kAuto;
  std::uint32_t threads = 0;  // 0: the ranks are processes that a launcher started
  std::string json;           // target; "": none
};

// As given; empty: not.
struct RankBenchWords {
  std::string sizes, seconds;
};
void add_rank_options(CLI::App& app, RankBenchOptions& options, RankBenchWords& words);
// Throws command_line::Fault.
void finish_rank_options(RankBenchOptions& options, const RankBenchWords& words);
// The launch that find_launch() finds for them. Throws command_line::Fault for one process without
// --threads, or for several with it. Also throws as find_launch() does.
Launch launch_of(const RankBenchOptions& options);
}  // namespace headrace::tools
