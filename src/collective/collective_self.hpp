// SPDX-License-Identifier: Apache-2.0
// collective_self.hpp: the collective of an engine that has no other ranks.
#pragma once
#include <memory>

#include "headrace/collective.hpp"

namespace headrace::collective {
// One rank: its calls copy nothing.
std::shared_ptr<Collective> make_collective_self();
}  // namespace headrace::collective
