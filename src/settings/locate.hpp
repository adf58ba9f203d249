// SPDX-License-Identifier: Apache-2.0
// locate.hpp: finds the place of a key in a text.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error_text.hpp"

namespace headrace::settings {
// The path to a value, in the two spellings that are needed.
struct Path {
  std::string dotted;   // "headrace.nvme_paths[1]", for people: one line, long names cut
  std::string pointer;  // "/headrace/nvme_paths/1", exact

  Path member(std::string_view name) const;
  Path element(std::size_t index) const;
};

using base::one_line;

struct TextPosition {
  std::size_t line = 1;
  std::size_t column = 1;  // in characters; a byte order mark has no column
};
TextPosition position_at(std::string_view text, std::size_t offset);

// The places of values in a text, by Path::pointer.
using Offsets = std::unordered_map<std::string, std::size_t>;
}  // namespace headrace::settings
