// SPDX-License-Identifier: Apache-2.0
// adapter_report.hpp: the report of adapter_bench, for people and as JSON.
#pragma once
#include <string>

#include "adapter_options.hpp"
#include "adapter_rounds.hpp"

namespace headrace::tools {
std::string head_text(const AdapterOptions& options);  // machine, build, config
std::string result_text(const AdapterOptions& options, const AdapterMeasurement& measurement);
// Whether both upper bounds, of CPU and of wall time, are at most what was asked.
bool is_met(const AdapterOptions& options, const AdapterMeasurement& measurement);

std::string to_json(const AdapterOptions& options, const AdapterMeasurement& measurement);
}  // namespace headrace::tools
