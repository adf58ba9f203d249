// SPDX-License-Identifier: Apache-2.0
// blocks.hpp: sorts parameters into groups that are gathered together, by their names.
#pragma once
#include <vector>

#include "model/model.hpp"

namespace headrace::tools {
// Blocks are what a number in the name counts ("model.layers.3"), each a group, in stacks
// ("encoder.block", "decoder.block"). What has no number lies around the stack whose name begins
// as its own does, or around all of them: embeddings before it, all else behind. As
// groups_of_known() has them, whatever the order of `parameters`.
std::vector<ModelGroup> groups_by_name(std::vector<ModelParameter> parameters);
}  // namespace headrace::tools
