// SPDX-License-Identifier: Apache-2.0
#include "bench_ranks/rank_report.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "measure/figures.hpp"

namespace headrace::tools {
namespace {
std::string row_text(const RankContest& contest, const RankRow& row) {
  const double ours = median_interval(row.ours).median, raw = median_interval(row.raw).median;
  const MedianInterval ratio = row.ratio();
  return fmt::format("  {:>8} {:>10} {:>8} {:>10} {:>12} {:>8} {:>10}  [{}, {}]\n",
                     base::format_bytes(row.piece_bytes), three_digits(1e6 * ours),
                     three_digits(contest.bytes_per_second(row, ours) / 1e9),
                     three_digits(1e6 * median_interval(row.cpu).median), three_digits(1e6 * raw),
                     three_digits(contest.bytes_per_second(row, raw) / 1e9),
                     three_digits(ratio.median), three_digits(ratio.least),
                     three_digits(ratio.most));
}

double most_idle(const RankContest& contest) { return std::ranges::max(contest.idle_shares); }
}  // namespace

std::vector<Fact> world_lines(const RankWorld& world) {
  return {{"ranks",
           fmt::format("{} by {}, over {}", world.world_size, world.launcher, world.transport)},
          {"of rank 0",
           fmt::format("{} on its machine, {} on its CPUs", world.of_machine, world.sharing_cpus)}};
}

Json world_json(const RankWorld& world) {
  return {{"ranks",
           {{"world_size", world.world_size},
            {"launcher", world.launcher},
            {"transport", world.transport},
            {"of_machine", world.of_machine},
            {"sharing_cpus", world.sharing_cpus}}}};
}

std::vector<std::string> rank_doubts(const RankContest& contest) {
  if (most_idle(contest) <= kIdleShareMost) return {};
  return {
      fmt::format("idle, a rank takes {:.1f} % of a core, more than {:.0f} %; what computes "
                  "beside it gets less",
                  100 * most_idle(contest), 100 * kIdleShareMost)};
}

std::string ranks_text(const RankContest& contest) {
  std::string text;
  for (const RankCall call : kRankCalls) {
    text += fmt::format("\n{}, beside {}\n  {:>8} {:>10} {:>8} {:>10} {:>12} {:>8} {:>10}  {}\n",
                        name_of(call), name_of(call, contest.raw_names), "bytes", "us a call",
                        "GB/s", "CPU us", "raw: us", "GB/s", "ours/raw", "[least, most]");
    for (const RankRow& row : contest.rows) {
      if (row.call == call) text += row_text(contest, row);
    }
  }
  text +=
      "\n  bytes: of a rank for each other. GB/s: that arrive at a rank. The slowest rank "
      "counts.\n  CPU us: of a rank's process in our call, waiting included where it spins\n";
  text += fmt::format("\nidle: {:.2f} % of a core, of the rank that takes most, over {} s\n",
                      100 * most_idle(contest), three_digits(contest.idle_seconds));
  text += contest.mismatch.empty()
              ? "verified: the first call of each row, both ways\n"
              : fmt::format("MISMATCH: after {} a rank had other bytes than were given\n",
                            contest.mismatch);
  return text + fmt::format("{} rounds in {} s\n", contest.rounds, three_digits(contest.seconds));
}

Json ranks_json(const RankContest& contest) {
  Json json = {{"rounds", contest.rounds},
               {"seconds", contest.seconds},
               {"rows", Json::array()},
               {"idle", {{"seconds", contest.idle_seconds}, {"shares", contest.idle_shares}}},
               {"mismatch", contest.mismatch}};
  for (const RankRow& row : contest.rows) {
    json["rows"].push_back({{"call", name_of(row.call)},
                            {"raw_call", name_of(row.call, contest.raw_names)},
                            {"bytes", row.piece_bytes},
                            {"count", row.count},
                            {"ratio", interval_json(row.ratio())},
                            {"seconds", row.ours},
                            {"cpu_seconds", row.cpu},
                            {"raw_seconds", row.raw}});
  }
  return json;
}
}  // namespace headrace::tools
