// SPDX-License-Identifier: Apache-2.0
// doctor.hpp: `headrace doctor`: what this machine has for offloading, tried where it can be.
#pragma once

namespace headrace::tools {
// argv[0] is the word "doctor". Returns the exit code.
int doctor(int argc, const char* const* argv);
}  // namespace headrace::tools
