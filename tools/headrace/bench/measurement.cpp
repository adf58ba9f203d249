// SPDX-License-Identifier: Apache-2.0
#include "bench/measurement.hpp"

#include <algorithm>
#include <utility>

namespace headrace::tools {
void Cell::add(TimedSample sample) {
  read_latency.add(sample.read_latency);
  write_latency.add(sample.write_latency);
  samples.push_back(std::move(sample));
}

std::vector<double> Cell::rates() const {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.bytes_per_second());
  return values;
}

MedianInterval Cell::cpu_per_gb() const {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.cpu_per_gb());
  return median_interval(std::move(values));
}

LatencyHistogram Cell::latency() const {
  LatencyHistogram both = read_latency;
  both.add(write_latency);
  return both;
}

double Ceiling::of(Pattern pattern) const {
  if (pattern == Pattern::kMixed) return mixed;
  return reads(pattern) ? read : write;
}

Ceiling ceiling_of(const Measurement& measurement) {
  Ceiling ceiling;
  for (const Cell& cell : measurement.cells) {
    if (cell.samples.empty()) continue;
    const Pattern pattern = cell.workload.pattern;
    double& best = pattern == Pattern::kMixed ? ceiling.mixed
                   : reads(pattern)           ? ceiling.read
                                              : ceiling.write;
    best = std::max(best, cell.rate().median);
  }
  return ceiling;
}

std::optional<std::size_t> recommended(const Measurement& measurement, Pattern pattern) {
  const auto& cells = measurement.cells;
  const auto counts = [&](const Cell& cell) {
    return cell.workload.pattern == pattern && cell.workload.mover == Mover::kQueue &&
           !cell.samples.empty();
  };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (counts(cells[i]) && (!best || cells[i].rate().median > cells[*best].rate().median))
      best = i;
  }
  if (!best) return std::nullopt;
  const double reached = cells[*best].rate().low;
  const auto in_flight = [](const Cell& cell) {
    return cell.workload.block_bytes * cell.workload.depth * cell.workload.jobs;
  };
  std::size_t cheapest = *best;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (counts(cells[i]) && cells[i].rate().median >= reached &&
        in_flight(cells[i]) < in_flight(cells[cheapest]))
      cheapest = i;
  }
  return cheapest;
}
}  // namespace headrace::tools
