// SPDX-License-Identifier: Apache-2.0
// some_of.hpp: a few of many names, for an error.
#pragma once
#include <cstddef>
#include <set>
#include <string>

#include "base/error_text.hpp"

namespace headrace::checkpoint {
// "'a', 'b', 'c' and 5 more"
inline std::string some_of(const std::set<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  std::size_t shown = 0;
  for (const std::string& name : names) {
    if (shown == kShown) return text + " and " + std::to_string(names.size() - kShown) + " more";
    text += (shown++ == 0 ? "" : ", ") + base::quoted_name(name);
  }
  return text;
}

}  // namespace headrace::checkpoint
