// SPDX-License-Identifier: Apache-2.0
// bench_copy.hpp: the subcommand `bench copy`: copies between host and GPU beside what their link
// gives.
#pragma once

namespace headrace::tools {
// argv[0] is its name. Returns the exit code (program/exit_codes.hpp).
int bench_copy(int argc, const char* const* argv);
}  // namespace headrace::tools
