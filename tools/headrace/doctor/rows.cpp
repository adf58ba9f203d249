// SPDX-License-Identifier: Apache-2.0
#include "doctor/rows.hpp"

#include <fmt/core.h>

namespace headrace::tools {
const char* name_of(Mark mark) noexcept {
  switch (mark) {
    case Mark::kOk:
      return "ok";
    case Mark::kNote:
      return "note";
    case Mark::kGap:
      return "gap";
    case Mark::kUnknown:
      return "unknown";
  }
  return "unknown";
}

void tell_error(Row& row, const std::string& text) {
  const std::size_t first = text.find("; ");
  row.detail = text.substr(0, first);
  if (first == std::string::npos) return;
  row.fix = text.substr(first + 2);
  const std::size_t second = row.fix.find("; ");
  if (second == std::string::npos) return;
  row.consequence = row.fix.substr(0, second);
  row.fix.erase(0, second + 2);
}

std::string count_text(double count) {
  return count >= 1e8 ? fmt::format("{:.1f} billion", count / 1e9)
                      : fmt::format("{:.1f} million", count / 1e6);
}
}  // namespace headrace::tools
