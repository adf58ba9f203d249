// SPDX-License-Identifier: Apache-2.0
// json_text.hpp: from bytes to a JSON value, with the place of everything in it and of what is
// wrong.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "settings/locate.hpp"

namespace headrace::settings {
// kRelaxed: comments (// and /* */), trailing commas and a byte order mark are allowed.
enum class Syntax { kStrict, kRelaxed };

// What is wrong with a text, and what would mend it.
struct TextFault {
  std::size_t offset;
  std::string text;
  bool in_hjson = false;  // HJSON has what JSON has not there
};

struct Document {
  nlohmann::json value;   // of a key given twice the last one
  Offsets offsets;        // of all keys and list elements; of a key given twice, the last one's
  std::size_t start = 0;  // where the value begins
  bool parsed = false;    // there is a value to look at: faults, if any, are keys given twice
  std::vector<TextFault> faults;  // not empty: `value` may be searched for more, but not followed
};

// Refuses what is not UTF-8, holds control characters, nests deeper than 64, is not JSON or names a
// key twice.
Document parse_document(std::string_view text, Syntax syntax);

// The first place where `text` leaves JSON's grammar; nothing where it does not. The text holds no
// control characters but blanks, and is well-formed UTF-8.
std::optional<TextFault> find_syntax_fault(std::string_view text);

// What stands at a dotted path, "aio.queue_depth"; null: nothing.
const nlohmann::json* find_in(const nlohmann::json& root, std::string_view path);
}  // namespace headrace::settings
