// SPDX-License-Identifier: Apache-2.0
// drives_rounds.hpp: each drive alone and all of them together, in every round, in turn forwards
// and backwards.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "drives_options.hpp"
#include "headrace/stats.hpp"

namespace headrace::tools {
// Bytes per second of one kind of work.
struct Together {
  std::vector<double> alone;  // each drive
  double together = 0;        // all of them at once
  double sum() const;
  double ratio() const { return together / sum(); }
};

struct DrivesRound {
  Together read, write, update;
};

struct DrivesMeasurement {
  std::vector<DriveReport> plan;  // of the engine over all drives
  std::vector<DrivesRound> rounds;
};

// `progress` gets the number of rounds done. Throws headrace::Error.
DrivesMeasurement measure_together(const DrivesOptions& options,
                                   const std::function<void(std::uint32_t)>& progress);
}  // namespace headrace::tools
