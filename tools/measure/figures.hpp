// SPDX-License-Identifier: Apache-2.0
// figures.hpp: formats measured values.
#pragma once
#include <cstdint>
#include <string>

#include "measure/statistics.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// Three digits that count: "0.0123", "4.12", "41.2", "412".
std::string three_digits(double value);
// "[4.01, 4.22]", each over `unit`.
std::string interval_text(const MedianInterval& interval, double unit = 1);
std::string gb_text(double bytes_per_second);    // "4.12 GB/s"
std::string ms_text(std::uint64_t nanoseconds);  // "4.12"

Json interval_json(const MedianInterval& interval);
}  // namespace headrace::tools
