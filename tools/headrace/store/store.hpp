// SPDX-License-Identifier: Apache-2.0
// store.hpp: `headrace store`: lists, verifies, copies, exports and removes stores of durable
// engines.
#pragma once

namespace headrace::tools {
// argv[0] is the word "store". Returns the exit code.
int store(int argc, const char* const* argv);
}  // namespace headrace::tools
