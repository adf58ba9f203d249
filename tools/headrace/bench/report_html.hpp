// SPDX-License-Identifier: Apache-2.0
// report_html.hpp: a measurement as one page for a browser: plots, tables, the settings that
// follow. It holds all that it shows and no script; it is well-formed XML besides.
#pragma once
#include <string>

#include "bench/measurement.hpp"
#include "bench/thresholds.hpp"

namespace headrace::tools {
// `required` may be null.
std::string to_html(const Measurement& measurement, const Required* required = nullptr);
}  // namespace headrace::tools
