// SPDX-License-Identifier: Apache-2.0
// sim.hpp: the subcommand `headrace sim`.
#pragma once

namespace headrace::tools {
int sim(int argc, const char* const* argv);
}  // namespace headrace::tools
