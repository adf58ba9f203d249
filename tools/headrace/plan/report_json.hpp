// SPDX-License-Identifier: Apache-2.0
// report_json.hpp: a plan as JSON; apart, since JSON's headers take long to compile.
#pragma once
#include "plan/report.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
Json plan_json(const PlanResult& result);
}  // namespace headrace::tools
