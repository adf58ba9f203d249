// SPDX-License-Identifier: Apache-2.0
// rank_report.hpp: the report of `headrace bench ranks`, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "bench_ranks/rank_contest.hpp"
#include "program/failing.hpp"
#include "program/machine.hpp"

namespace headrace::tools {
// The ranks that were measured.
struct RankWorld {
  std::uint32_t world_size = 0;
  std::string launcher;   // "Open MPI"; "threads of one process"
  std::string transport;  // "mpi"
  std::uint32_t of_machine = 1;
  std::uint32_t sharing_cpus = 1;  // of those of rank 0's machine, with rank 0
};
std::vector<Fact> world_lines(const RankWorld& world);
Json world_json(const RankWorld& world);  // "ranks"

// More is a fault: ranks that wait are to leave their cores to what computes.
inline constexpr double kIdleShareMost = 0.03;
// One line each.
std::vector<std::string> rank_doubts(const RankContest& contest);
// At most 100 columns.
std::string ranks_text(const RankContest& contest);
Json ranks_json(const RankContest& contest);  // "rounds", "seconds", "rows", "idle", "mismatch"
}  // namespace headrace::tools
