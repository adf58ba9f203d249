// SPDX-License-Identifier: Apache-2.0
// syntax_fault.hpp: what is wrong with a text that is not JSON, and what would mend it.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::settings {
struct TextFault {
  std::size_t offset;
  std::string text;
  bool in_hjson = false;  // HJSON has what JSON has not there
};

// The first place where `text` leaves JSON's grammar; nothing where it does not. The text holds no
// control characters but blanks, and is well-formed UTF-8.
std::optional<TextFault> find_syntax_fault(std::string_view text);
}  // namespace headrace::settings
