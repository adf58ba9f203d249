// SPDX-License-Identifier: Apache-2.0
// json_text.hpp: from bytes to a JSON value, with the place of everything that is wrong.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "settings/locate.hpp"
#include "settings/syntax_fault.hpp"

namespace headrace::settings {
// kRelaxed: comments (// and /* */), trailing commas and a byte order mark are allowed.
enum class Syntax { kStrict, kRelaxed };

struct Document {
  nlohmann::json value;
  Locator locator;
  std::size_t start = 0;  // where the value begins
  bool parsed = false;    // there is a value to look at: faults, if any, are keys given twice
  std::vector<TextFault> faults;  // not empty: `value` may be searched for more, but not followed
};

// Refuses what is not UTF-8, holds control characters, nests deeper than 64, is not JSON or names a
// key twice.
Document parse_document(std::string_view text, Syntax syntax);

// What stands at a dotted path, "aio.queue_depth"; null: nothing.
const nlohmann::json* find_in(const nlohmann::json& root, std::string_view path);
}  // namespace headrace::settings
