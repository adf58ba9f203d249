// SPDX-License-Identifier: Apache-2.0
// report_json.hpp: a measurement as JSON, by fio's names where the thing is the same, and back.
#pragma once
#include <string>

#include "bench/measurement.hpp"
#include "bench/thresholds.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
Json interval_json(const MedianInterval& interval);
// schema_version 1. `required` may be null.
Json to_json(const Measurement& measurement, const Required* required);

// What `bench compare` needs of it: everything but latencies, seconds, comparisons, cliffs, and
// what follows from the rest. Throws Error kInvalidArgument naming `file` and what is missing, of
// another type or of another schema_version.
Measurement measurement_of(const Json& json, const std::string& file);
}  // namespace headrace::tools
