// SPDX-License-Identifier: Apache-2.0
// collectives.hpp: the collectives that are part of the library.
#pragma once
#include <memory>

#include "headrace/collective.hpp"

namespace headrace::collective {
// One rank: its calls copy nothing.
std::shared_ptr<Collective> make_collective_self();
}  // namespace headrace::collective
