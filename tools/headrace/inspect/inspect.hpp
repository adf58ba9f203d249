// SPDX-License-Identifier: Apache-2.0
// inspect.hpp: `headrace inspect`: prints and verifies swap files, read-only.
#pragma once
#include <string>
#include <vector>

#include "inspect/swap_inspection.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// argv[0] is the word "inspect". Returns the exit code.
int inspect(int argc, const char* const* argv);

// For people, and the JSON document.
std::string inspection_text(const std::vector<SwapInspection>& files);
Json inspection_json(const std::vector<SwapInspection>& files);
// "0 to 41", "0 to 3, 5, 7 to 9".
std::string ranges_text(const std::vector<std::uint64_t>& ascending);
}  // namespace headrace::tools
