// SPDX-License-Identifier: Apache-2.0
// plots.hpp: a plan in pictures, each a figure of the page.
#pragma once
#include <string>

#include "plan/report.hpp"

namespace headrace::tools {
// The first micro-batch and the update, a line per lane.
std::string lanes_over_time(const PlanResult& result);
// Device, host and NVMe: what is allocated, and activations where they lie.
std::string memory_over_time(const PlanResult& result);
// What a step takes with smaller and larger micro-batches, planned again for each.
std::string step_by_batch(const PlanResult& result, Planning& planning);
}  // namespace headrace::tools
