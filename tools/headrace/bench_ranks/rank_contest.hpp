// SPDX-License-Identifier: Apache-2.0
// rank_contest.hpp: the calls of a Collective beside the same calls made raw, in interleaved
// rounds. Every rank of a world runs it, and each has the same result.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headrace/collective.hpp"
#include "measure/statistics.hpp"
#include "ranks/rank_module.hpp"

namespace headrace::tools {
enum class RankCall : std::uint8_t { kAllGather, kAllToAll, kExchange };
inline constexpr std::array kRankCalls{RankCall::kAllGather, RankCall::kAllToAll,
                                       RankCall::kExchange};
const char* name_of(RankCall call) noexcept;  // "all_gather"
const char* name_of(RankCall call, const RawCalls::Names& names) noexcept;

// Seconds of a call, of the slowest rank; one value per round.
struct RankRow {
  RankCall call = {};
  std::uint64_t piece_bytes = 0;  // that each rank gives to each other
  std::uint64_t count = 0;        // calls of a measurement
  std::vector<double> ours = {}, raw = {};
  // CPU seconds of one of our calls, of the rank whose process took most; with what waits spinning.
  std::vector<double> cpu = {};

  // The rate at which bytes arrive at a rank: Headrace's over raw, by round.
  MedianInterval ratio() const { return median_ratio(raw, ours); }
};

struct RankContest {
  RawCalls::Names raw_names = {};
  std::uint32_t world_size = 0;
  std::vector<RankRow> rows = {};
  std::uint32_t rounds = 0;
  double seconds = 0;  // in all
  // Of a core, while no call is pending: what this rank's process took beside its sleeping thread.
  std::vector<double> idle_shares = {};  // by rank
  double idle_seconds = 0;
  // "all_gather of 1 MiB, raw": the first call after which a rank had other bytes; "": none.
  std::string mismatch = {};

  double bytes_per_second(const RankRow& row, double seconds) const {
    return static_cast<double>((world_size - 1) * row.piece_bytes) / seconds;
  }
};

struct RankContestOptions {
  std::vector<std::uint64_t> sizes = {};  // of a piece, ascending
  std::uint32_t rounds = 7;
  double sample_seconds = 0.05;  // of one measurement; one call is the least
  double idle_seconds = 2;
  std::uint32_t ranks_of_process = 1;  // threads, where there are several

  std::uint64_t buffer_bytes(std::uint32_t world_size) const;  // of a rank, in all
  double about_seconds() const;
};
using RankProgress = std::function<void(const std::string& what, double share)>;

// Collective: every rank calls it with the same options. A first round warms up, compares what
// arrives, and finds how many calls a measurement takes.
// Throws headrace::Error: what the Collective throws; kInterrupted on the rank that a signal ends,
// kPeerLost on the others; kInvalidArgument where options differ; kIo for a raw call that failed.
RankContest measure_ranks(Collective& collective, RawCalls& raw, const RankContestOptions& options,
                          const RankProgress& progress);
}  // namespace headrace::tools
