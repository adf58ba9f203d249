// SPDX-License-Identifier: Apache-2.0
// figure_doubts.hpp: doubts about a finished run that follow from its figures alone.
#pragma once
#include <string>
#include <vector>

#include "bench/measurement.hpp"

namespace headrace::tools {
// A warning each, once for all the rows it holds for: intervals that did not settle, comparisons
// that are unresolved or whose sides read different shares.
//   wanted_half_width  of comparisons, a share (--until)
std::vector<std::string> figure_doubts(const Measurement& measurement, double wanted_half_width);
}  // namespace headrace::tools
