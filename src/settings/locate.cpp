// SPDX-License-Identifier: Apache-2.0
#include "settings/locate.hpp"

#include <cstdio>

namespace headrace::settings {
Path Path::member(std::string_view name) const {
  Path path{dotted.empty() ? one_line(name) : dotted + "." + one_line(name), pointer + "/"};
  for (const char c : name) {
    if (c == '~') {
      path.pointer += "~0";
    } else if (c == '/') {
      path.pointer += "~1";
    } else {
      path.pointer += c;
    }
  }
  return path;
}

Path Path::element(std::size_t index) const {
  const std::string number = std::to_string(index);
  return {dotted + "[" + number + "]", pointer + "/" + number};
}

TextPosition position_at(std::string_view text, std::size_t offset) {
  TextPosition at;
  std::size_t i = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  for (; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++at.line;
      at.column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
      ++at.column;
    }
  }
  return at;
}
}  // namespace headrace::settings
