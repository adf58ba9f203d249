// SPDX-License-Identifier: Apache-2.0
// join.hpp: how this program comes to its other ranks.
#pragma once
#include "ranks/joining.hpp"

namespace train_gpt {
using headrace::tools::join_ranks;
using headrace::tools::leave_launch;
}  // namespace train_gpt
