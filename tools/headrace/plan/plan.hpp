// SPDX-License-Identifier: Apache-2.0
// plan.hpp: `headrace plan`: does a model fit a machine, what does a step take, what would help.
#pragma once

namespace headrace::tools {
// argv[0] is its name. Returns the exit code.
int plan(int argc, const char* const* argv);
}  // namespace headrace::tools
