// SPDX-License-Identifier: Apache-2.0
// bench.hpp: `headrace bench`: what a drive can do for offloading.
#pragma once

namespace headrace::tools {
// argv[0] is the word "bench". Returns the exit code.
int bench(int argc, const char* const* argv);
}  // namespace headrace::tools
