// SPDX-License-Identifier: Apache-2.0
// report.hpp: the report of `headrace bench optimizer`, for people and for programs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bench_optimizer/contest.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// The rows whose median share is below `least_share`, or that were not reached. None where nothing
// is required.
std::vector<const UpdateRow*> rows_below(const UpdateContest& contest,
                                         std::optional<double> least_share);

// At most 100 columns.
std::string contest_text(const UpdateContest& contest, std::optional<double> least_share);
// "parameters", "rounds", "seconds", "rows", "required".
Json contest_json(const UpdateContest& contest, std::optional<double> least_share);
}  // namespace headrace::tools
