// SPDX-License-Identifier: Apache-2.0
// plan_refusals.hpp: why a plan is refused, with the table of the least one and the change that
// would help.
#pragma once
#include <cstdint>
#include <string>

#include "residency/layout.hpp"

namespace headrace::residency {
// Not even the least plan fits the budget `limit`, or what the machine has left.
//   choice  of what moves as the settings say: where more could, the text names it
//   least   what takes the least, laid out
[[noreturn]] void refuse_host(const PlanInputs& inputs, const Choice& choice, const Plan& least,
                              std::uint64_t limit);
// One gather slot is too many for the device's budget.
[[noreturn]] void refuse_device(const PlanInputs& inputs, const Plan& least);
// It fits the budget, which is more than the machine has left.
[[noreturn]] void refuse_beyond_machine(const PlanInputs& inputs, const Plan& plan,
                                        std::uint64_t limit);
// A warning.
std::string larger_than_resident(const Plan& plan, std::uint64_t resident);
}  // namespace headrace::residency
