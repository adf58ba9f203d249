// SPDX-License-Identifier: Apache-2.0
// sustained.hpp: one long stretch of a workload, second by second: up to where a drive's cache is
// full, and what it does from there on.
#pragma once
#include <functional>
#include <optional>

#include "bench/measurement.hpp"
#include "bench/runner.hpp"

namespace headrace::tools {
struct SustainedLimits {
  double seconds = 300;
  std::uint64_t bytes = 0;  // per drive and direction, of what writes
};

// Adds a cell with one sample, and the cliff if there is one. It ends at the first of the limits.
void take_long(Runner& runner, Measurement& measurement, const Workload& workload,
               const SustainedLimits& limits,
               const std::function<void(std::uint64_t bytes, double seconds)>& shown);

// The second at which the rate falls for good: what follows has at most 0.8 of the median of what
// came before, with at least five seconds on either side; where the two medians describe the
// seconds best. None: there is no such second.
std::optional<CacheCliff> find_cliff(const std::vector<Second>& seconds);
}  // namespace headrace::tools
