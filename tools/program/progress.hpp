// SPDX-License-Identifier: Apache-2.0
// progress.hpp: how far a program is, on stderr: one line that is overwritten on a terminal, a line
// now and then elsewhere.
#pragma once
#include <cstdint>

namespace headrace::tools {
void show_progress(std::uint32_t done, std::uint32_t rounds);
}  // namespace headrace::tools
