// SPDX-License-Identifier: Apache-2.0
// run_program.hpp: the frame of main() that all of Headrace's programs share.
#pragma once

namespace headrace::tools {
// Standard descriptors that are open, signals that are noted, and results that have arrived:
// returns the exit code. Prints an exception that nobody caught.
int run_program(const char* name, int argc, const char* const* argv,
                int (*run)(int argc, const char* const* argv)) noexcept;
}  // namespace headrace::tools
