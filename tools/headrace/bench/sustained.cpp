// SPDX-License-Identifier: Apache-2.0
#include "bench/sustained.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "measure/statistics.hpp"

namespace headrace::tools {
namespace {
constexpr std::size_t kLeastSide = 5;  // seconds
constexpr double kFall = 0.8;

struct Side {
  double median = 0;
  double deviation = 0;  // from it, summed
};
Side side_of(const std::vector<Second>& seconds, std::size_t from, std::size_t to) {
  std::vector<double> rates;
  for (std::size_t i = from; i < to; ++i) rates.push_back(seconds[i].rate());
  Side side{.median = median_interval(rates).median};
  for (const double rate : rates) side.deviation += std::abs(rate - side.median);
  return side;
}
}  // namespace

std::optional<CacheCliff> find_cliff(const std::vector<Second>& seconds) {
  std::optional<CacheCliff> cliff;
  double least_deviation = 0;
  std::uint64_t moved = 0;
  for (std::size_t i = 0; i + kLeastSide <= seconds.size(); ++i) {
    if (i >= kLeastSide) {
      const Side before = side_of(seconds, 0, i), after = side_of(seconds, i, seconds.size());
      const double deviation = before.deviation + after.deviation;
      if (after.median <= kFall * before.median && (!cliff || deviation < least_deviation)) {
        least_deviation = deviation;
        cliff = CacheCliff{.workload = "",
                           .at_seconds = seconds[i].at_seconds - seconds[i].seconds,
                           .after_bytes = moved,
                           .before = before.median,
                           .after = after.median};
      }
    }
    moved += seconds[i].written_bytes;
  }
  return cliff;
}

void take_long(Runner& runner, Measurement& measurement, const Workload& workload,
               const SustainedLimits& limits,
               const std::function<void(std::uint64_t, double)>& shown) {
  const auto began = std::chrono::steady_clock::now();
  Stretch stretch{.bytes = writes(workload.pattern) ? limits.bytes : 0,
                  .seconds = limits.seconds,
                  .per_second = true};
  Cell cell{.workload = workload, .queue = ""};
  cell.add(runner.take(workload, stretch, [&](std::uint64_t bytes) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    shown(bytes, passed.count());
  }));
  cell.queue = runner.queue_text();
  if (auto cliff = find_cliff(cell.samples[0].seconds_of)) {
    cliff->workload = text_of(workload);
    measurement.cliffs.push_back(*cliff);
  }
  measurement.cells.push_back(std::move(cell));
  measurement.held.push_back(held_now());
}
}  // namespace headrace::tools
