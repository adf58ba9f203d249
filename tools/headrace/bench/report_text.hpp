// SPDX-License-Identifier: Apache-2.0
// report_text.hpp: the text of `headrace bench`: at most 100 columns, GB is 10^9 bytes.
#pragma once
#include <string>

#include "bench/measurement.hpp"

namespace headrace::tools {
// Machine, build, drives, what will be measured; before measuring.
std::string head_text(const Measurement& measurement);
// A table per pattern, comparisons, verification, warnings.
std::string result_text(const Measurement& measurement);
}  // namespace headrace::tools
