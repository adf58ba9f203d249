// SPDX-License-Identifier: Apache-2.0
#include "doctor/rows.hpp"

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
  const std::size_t last = text.rfind("; ");
  row.detail = text.substr(0, first);
  if (first == std::string::npos) return;
  row.fix = text.substr(last + 2);
  if (last > first) row.consequence = text.substr(first + 2, last - first - 2);
}
}  // namespace headrace::tools
