// SPDX-License-Identifier: Apache-2.0
// drives_report.hpp: the report of drives_bench, for people and as JSON.
#pragma once
#include <string>

#include "drives_options.hpp"
#include "drives_rounds.hpp"

namespace headrace::tools {
// The lesser of raw reads', raw writes' and the update's median of together / sum.
double worst_ratio(const DrivesMeasurement& measurement);
std::string head_text(const DrivesOptions& options);
std::string result_text(const DrivesOptions& options, const DrivesMeasurement& measurement);
std::string to_json(const DrivesOptions& options, const DrivesMeasurement& measurement);
}  // namespace headrace::tools
