// SPDX-License-Identifier: Apache-2.0
// run_program.hpp: what main() of each of Headrace's programs does around its work.
#pragma once

namespace headrace::tools {
// Standard descriptors that are open, signals that are noted, and results that have arrived:
// returns the exit code. Prints an exception that nobody caught.
int run_program(const char* name, int argc, const char* const* argv,
                int (*run)(int argc, const char* const* argv)) noexcept;
}  // namespace headrace::tools
