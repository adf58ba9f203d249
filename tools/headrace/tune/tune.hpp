// SPDX-License-Identifier: Apache-2.0
// tune.hpp: `headrace tune`: the engine's I/O settings for a drive, with an interval.
#pragma once

namespace headrace::tools {
// argv[0] is the word "tune". Returns the exit code.
int tune(int argc, const char* const* argv);
}  // namespace headrace::tools
