// SPDX-License-Identifier: Apache-2.0
// reports.hpp: plan and statistics as JSON, under the names of their C++ fields.
#pragma once
#include <string>

#include "headrace/stats.hpp"

namespace headrace::bindings {
std::string to_json(const PlanReport& plan);
std::string to_json(const Stats& stats);
}  // namespace headrace::bindings
