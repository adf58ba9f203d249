// SPDX-License-Identifier: Apache-2.0
// checkpoint.hpp: `headrace checkpoint`: shows and verifies what save_checkpoint() has made, joins
// its files, and converts it to DeepSpeed's format and back.
#pragma once

namespace headrace::tools {
// argv[0] is the word "checkpoint". Returns the exit code.
int checkpoint(int argc, const char* const* argv);
}  // namespace headrace::tools
