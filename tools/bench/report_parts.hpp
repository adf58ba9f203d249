// SPDX-License-Identifier: Apache-2.0
// report_parts.hpp: what the reports of the benchmarks have in common.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "machine.hpp"

namespace headrace::bench {
using Json = nlohmann::ordered_json;

inline constexpr int kSchemaVersion = 1;  // of every benchmark's report

// A title and a line each.
std::string fact_lines(const char* title, const std::vector<Fact>& facts);
Json to_object(const std::vector<Fact>& facts);
// At least one value.
double median_of(std::vector<double> values);
// The report of a run that ended in an error.
std::string failure_json(int exit_code, const std::string& code, const std::string& text);
}  // namespace headrace::bench
