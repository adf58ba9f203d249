// SPDX-License-Identifier: Apache-2.0
// plots.hpp: a measurement in pictures, each a piece of the HTML report: figures with their
// captions, or a sentence that says why there is none.
#pragma once
#include <string>
#include <vector>

#include "bench/measurement.hpp"

namespace headrace::tools {
// Throughput by block size and depth, a map per pattern, of the raw queue.
std::string heat_maps(const Measurement& measurement);
// Latency and throughput as the depth grows, at each pattern's recommended block size.
std::string latency_curves(const Measurement& measurement);
// Reading, writing and both at once beside each other, by whoever was measured.
std::string trade_off(const Measurement& measurement);
// Throughput over time of long samples, with the second at which it fell for good.
std::string throughput_over_time(const Measurement& measurement);

// ---- shared by them ----

std::string figure(const std::string& svg, const std::string& caption);
std::string no_figure(const std::string& sentence);
// Patterns with samples of the raw queue, in the order of Pattern.
std::vector<Pattern> measured_patterns(const Measurement& measurement);
}  // namespace headrace::tools
