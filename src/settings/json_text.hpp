// SPDX-License-Identifier: Apache-2.0
// json_text.hpp: parses bytes into a JSON value, with the place of each element and of each fault.
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

// A fault in a text, and its fix.
struct TextFault {
  std::size_t offset;
  std::string text;
  bool in_hjson = false;  // HJSON allows at that place what JSON does not
};

struct Document {
  nlohmann::json value;   // of a key given twice: the last one
  Offsets offsets;        // of all keys and list elements; of a key given twice: the last one's
  std::size_t start = 0;  // where the value begins
  bool parsed = false;    // there is a value to check; any faults are keys given twice
  std::vector<TextFault> faults;  // if not empty, `value` may only be searched for further faults
};

// Rejects a text that is not UTF-8, holds control characters, nests deeper than 64, is not JSON or
// names a key twice.
Document parse_document(std::string_view text, Syntax syntax);

// The first place where `text` violates JSON's grammar; no value if there is none. The text must be
// well-formed UTF-8, without control characters except blanks.
std::optional<TextFault> find_syntax_fault(std::string_view text);

// The value at a dotted path, "aio.queue_depth"; null if there is none.
const nlohmann::json* find_in(const nlohmann::json& root, std::string_view path);
}  // namespace headrace::settings
