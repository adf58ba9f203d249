// SPDX-License-Identifier: Apache-2.0
// report_json.hpp: a measurement as JSON, by fio's names where the thing is the same.
#pragma once
#include <vector>

#include "bench/measurement.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// schema_version 1.
Json to_json(const Measurement& measurement);

// Parts of it that the report of `headrace tune` has too.
Json drives_json(const std::vector<MeasuredDrive>& drives);
Json verification_json(const Verification& verification);
}  // namespace headrace::tools
