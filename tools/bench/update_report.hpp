// SPDX-License-Identifier: Apache-2.0
// update_report.hpp: the report of update_bench, for people and as JSON.
#pragma once
#include <string>

#include "measure/statistics.hpp"
#include "update_options.hpp"
#include "update_rounds.hpp"

namespace headrace::tools {
MedianInterval bound_ratio(const UpdateMeasurement& measurement);

std::string head_text(const UpdateOptions& options);  // machine, build, config
std::string result_text(const UpdateOptions& options, const UpdateMeasurement& measurement);

std::string to_json(const UpdateOptions& options, const UpdateMeasurement& measurement);
}  // namespace headrace::tools
