// SPDX-License-Identifier: Apache-2.0
// report_parts.hpp: parts that reports of measurements share.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "program/failing.hpp"
#include "program/machine.hpp"

namespace headrace::tools {
// A title and a line each.
std::string fact_lines(const char* title, const std::vector<Fact>& facts);
Json to_object(const std::vector<Fact>& facts);
// "1,234,567".
std::string grouped(std::uint64_t number);
// At least one value.
double median_of(std::vector<double> values);
}  // namespace headrace::tools
