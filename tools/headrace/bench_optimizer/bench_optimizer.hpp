// SPDX-License-Identifier: Apache-2.0
// bench_optimizer.hpp: the subcommand `bench optimizer`: the update kernels beside what memory
// gives.
#pragma once

namespace headrace::tools {
// argv[0] is its name. Returns the exit code (program/exit_codes.hpp).
int bench_optimizer(int argc, const char* const* argv);
}  // namespace headrace::tools
