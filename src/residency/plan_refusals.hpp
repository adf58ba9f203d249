// SPDX-License-Identifier: Apache-2.0
// plan_refusals.hpp: the errors for a rejected plan, with the table of the smallest plan and the
// change that would help.
#pragma once
#include <cstdint>
#include <string>

#include "residency/layout.hpp"

namespace headrace::residency {
// Even the smallest plan exceeds the budget `limit`, or the memory that the machine has left.
//   choice  moves what the settings say; if they could move more, the text names the setting
//   least   the smallest plan, laid out
[[noreturn]] void refuse_host(const PlanInputs& inputs, const Choice& choice, const Plan& least,
                              std::uint64_t limit);
// Throws if nodes of zero_hpz_partition_size or hierarchical_reduce_ranks ranks do not make up the
// world.
void refuse_nodes(const PlanInputs& inputs);
// A single gather slot exceeds the device's budget.
[[noreturn]] void refuse_device(const PlanInputs& inputs, const Plan& least);
// The plan fits the budget, but takes more than the machine has left.
[[noreturn]] void refuse_beyond_machine(const PlanInputs& inputs, const Plan& plan,
                                        std::uint64_t limit);
// The warning for a plan that takes more host memory than keeping everything there would, with the
// budget `for_all` at which it is kept.
std::string larger_than_resident(const Plan& plan, std::uint64_t for_all);
}  // namespace headrace::residency
