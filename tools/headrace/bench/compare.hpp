// SPDX-License-Identifier: Apache-2.0
// compare.hpp: `headrace bench compare A.json B.json`: what changed between two runs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bench/measurement.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// argv[0] is "compare". Returns the exit code: 4 where a cell is slower than --fail-below allows.
int compare(int argc, const char* const* argv);

// One workload in both runs.
struct ComparedCell {
  std::string workload;
  MedianInterval a, b;   // bytes per second
  MedianInterval ratio;  // of b / a, unpaired
  bool told_apart() const { return ratio.bounded && (ratio.low > 1 || ratio.high < 1); }
};

struct ComparedRuns {
  std::vector<ComparedCell> cells;
  std::vector<std::string> only_in_a, only_in_b;  // with samples there alone
  std::vector<std::string> cautions;              // what else differs than the software
};
ComparedRuns compare_runs(const Measurement& a, const Measurement& b);

// More than `allowed` (0.05: 5 %) below, beyond noise. None allowed: none is.
std::vector<const ComparedCell*> cells_below(const ComparedRuns& runs,
                                             std::optional<double> allowed);
std::string compared_text(const ComparedRuns& runs, std::optional<double> allowed);
Json compared_json(const ComparedRuns& runs, std::optional<double> allowed);
}  // namespace headrace::tools
