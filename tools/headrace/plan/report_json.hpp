// SPDX-License-Identifier: Apache-2.0
// report_json.hpp: a plan as JSON; apart, since JSON's headers take long to compile.
#pragma once
#include "plan/report.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
Json plan_json(const PlanResult& result);
// The time of a step with smaller and larger micro-batches, up to the largest of those tried that
// fits. Each is planned anew.
Json steps_by_batch_json(const PlanResult& result, Planning& planning);
}  // namespace headrace::tools
