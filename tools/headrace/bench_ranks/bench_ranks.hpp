// SPDX-License-Identifier: Apache-2.0
// bench_ranks.hpp: the subcommand `bench ranks`: what passes between ranks beside what their MPI,
// torch or memory alone does.
#pragma once

namespace headrace::tools {
// argv[0] is its name. Returns the exit code (program/exit_codes.hpp).
int bench_ranks(int argc, const char* const* argv);
}  // namespace headrace::tools
