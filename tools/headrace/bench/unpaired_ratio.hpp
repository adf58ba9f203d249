// SPDX-License-Identifier: Apache-2.0
// unpaired_ratio.hpp: how many times as large one set of measurements is as another, of which no
// two belong together.
#pragma once
#include <vector>

#include "bench/statistics.hpp"

namespace headrace::tools {
// Of b/a: the median of all ratios of one of b to one of a, and the interval that the two-sided
// rank sum test (Mann and Whitney) leaves at 95 %; `bounded` is false where too few values leave
// none. At least one value of each, all above 0, in any order.
MedianInterval unpaired_ratio(const std::vector<double>& a, const std::vector<double>& b);
}  // namespace headrace::tools
