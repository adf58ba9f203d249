// SPDX-License-Identifier: Apache-2.0
// contest.hpp: updates and passes in place over the same streams, in interleaved rounds.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench_optimizer/ceiling.hpp"
#include "bench_optimizer/state.hpp"
#include "measure/statistics.hpp"

namespace headrace::tools {
// Seconds of a pass, one value per round.
struct UpdateRow {
  Case of = {};
  std::size_t footprint = 0;  // whose ceiling it is a share of
  std::vector<double> seconds = {};
};

// The streams that some rows share, on as many threads. Rows of one footprint and its passes in
// place are measured in a turn of their own, so that what slows one slows all.
struct Footprint {
  std::vector<Stream> streams = {};
  std::uint32_t threads = 1;
  std::vector<std::size_t> rows = {};
  std::vector<std::vector<double>> seconds = {};  // per kind of pass in place, per round

  double bytes_per_parameter() const;  // read, and as many written
};

struct UpdateContest {
  std::uint64_t elements = 0;
  std::vector<CeilingKind> kinds;
  std::vector<Footprint> footprints;
  std::vector<UpdateRow> rows;
  std::uint32_t rounds = 0;  // that were ended
  double seconds = 0;        // in all

  // Of a row that has been measured:
  MedianInterval ns_per_parameter(const UpdateRow& row) const;
  MedianInterval bytes_per_second(const UpdateRow& row) const;
  // The kind with the highest median: the ceiling.
  std::size_t best_kind(const Footprint& footprint) const;
  MedianInterval bytes_per_second(const Footprint& footprint, std::size_t kind) const;
  // Of the ceiling, in bytes per second, pair by pair within rounds.
  MedianInterval share(const UpdateRow& row) const;
  // How many times as long as without checksums. None: it has none, or its twin is not there.
  std::optional<MedianInterval> checksum_cost(const UpdateRow& row) const;
};

struct ContestOptions {
  std::vector<Case> cases;
  std::uint64_t elements = 0;
  std::uint32_t rounds = 0;
  double most_seconds = 0;
  double sample_seconds = 0.02;  // a shorter pass is repeated for as long
};
// Receives what runs now, and the share of the time that has passed.
using ContestProgress = std::function<void(const std::string& what, double share)>;

// Ends early where the time is over: a row that was not reached has no seconds. Throws
// headrace::Error: kOutOfBudget, kInterrupted, and what UpdatePass throws.
UpdateContest measure(const ContestOptions& options, const ContestProgress& progress);
}  // namespace headrace::tools
