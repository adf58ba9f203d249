// SPDX-License-Identifier: Apache-2.0
// report.hpp: the report of `headrace doctor`, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "doctor/requirements.hpp"
#include "doctor/rows.hpp"

namespace headrace::tools {
enum class Colour : bool { kNever, kWanted };
// Wanted on a terminal unless NO_COLOR is set.
Colour colour_of_stdout();

std::string sections_text(const std::vector<Section>& sections, Colour colour = Colour::kNever);
Json sections_json(const std::vector<Section>& sections);
Json missed_json(const std::vector<Missed>& missed);
}  // namespace headrace::tools
