// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.hpp"

namespace headrace::base {
std::size_t utf8_size(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4 || !continues(1)) return 0;
  if (lead < 0xe0) return 2;
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;  // a longer form than needed
  if (lead == 0xed && byte(1) > 0x9f) return 0;  // half of a surrogate pair
  if (!continues(2)) return 0;
  if (lead < 0xf0) return 3;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return continues(3) ? 4 : 0;
}
}  // namespace headrace::base
