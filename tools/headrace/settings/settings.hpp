// SPDX-License-Identifier: Apache-2.0
// settings.hpp: `headrace settings`: a settings file checked, shown, explained, begun.
#pragma once

namespace headrace::tools {
// argv[0] is the word "settings". Returns the exit code.
int settings(int argc, const char* const* argv);
}  // namespace headrace::tools
