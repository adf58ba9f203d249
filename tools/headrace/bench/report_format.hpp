// SPDX-License-Identifier: Apache-2.0
// report_format.hpp: formats the values of a measurement for people.
#pragma once
#include <cstdint>
#include <string>

#include "bench/measurement.hpp"
#include "measure/figures.hpp"

namespace headrace::tools {
// `text` after `first`, broken at spaces; what follows the first line begins with `indent` spaces.
std::string wrapped(const std::string& first, const std::string& text, std::size_t indent);
// The most that `share` of all requests took, in ms; "-" where fewer than one lies beyond it. So
// 99 % needs a hundred requests, and 99.9 % a thousand.
std::string quantile_text(const LatencyHistogram& latency, double share);

// Requests per second, the median of the rounds as that of bytes is; at least one sample.
double iops_of(const Cell& cell);
// Its share of what the run's fastest cell of that direction reached; 0: that is not known.
double share_of_ceiling(const Cell& cell, const Ceiling& ceiling);

// "no difference", "faster by 3.1 %", "slower by 3.1 %", "unresolved: ±12.0 %".
std::string verdict_text(const Comparison& comparison);
// "-" where there is none.
std::string cpu_ratio_text(const Comparison& comparison);
// "verified: ..." or "MISMATCH: ...", without a line feed.
std::string verification_text(const Verification& verification);
std::string drive_text(const MeasuredDrive& drive);  // after its path
}  // namespace headrace::tools
