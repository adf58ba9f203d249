// SPDX-License-Identifier: Apache-2.0
// expect_part.hpp: finds a text in a report, wherever the report breaks its lines.
#pragma once
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace headrace::tools {
inline void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "wanted: " << part << "\nin:\n" << text;
}

// With a blank where it breaks a line, wherever a folder's name puts that.
inline std::string in_one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  return line;
}
}  // namespace headrace::tools
