// SPDX-License-Identifier: Apache-2.0
// lending.hpp: which engines may use memory that the trainer lends.
#pragma once
#include "engine/inputs.hpp"
#include "partition/registry.hpp"

namespace headrace::engine {
// Throws kUnsupported or kInvalidArgument, naming the group, for what Engine::expect_lent_weights()
// and expect_lent_gradients() do not serve.
void check_lending(const Inputs& inputs, const partition::Registry& registry);
}  // namespace headrace::engine
