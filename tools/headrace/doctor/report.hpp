// SPDX-License-Identifier: Apache-2.0
// report.hpp: what was found, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "doctor/requirements.hpp"
#include "doctor/rows.hpp"

namespace headrace::tools {
struct Style {
  bool colour = false;
  bool utf8 = false;  // marks as signs, else as words
};
// Colour on a terminal unless NO_COLOR is set; signs on one whose locale is UTF-8.
Style style_of_stdout();

std::string sections_text(const std::vector<Section>& sections, const Style& style);
Json sections_json(const std::vector<Section>& sections);
Json missed_json(const std::vector<Missed>& missed);
}  // namespace headrace::tools
