// SPDX-License-Identifier: Apache-2.0
// report_json.hpp: a measurement as JSON, by fio's names where the thing is the same.
#pragma once
#include <string>

#include "bench/measurement.hpp"
#include "bench/thresholds.hpp"
#include "measure/figures.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// schema_version 1. `required` may be null.
Json to_json(const Measurement& measurement, const Required* required);
}  // namespace headrace::tools
