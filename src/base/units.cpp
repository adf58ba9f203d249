// SPDX-License-Identifier: Apache-2.0
#include "base/units.hpp"

#include <array>
#include <charconv>
#include <cstdio>

namespace headrace::base {
std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int name = 0;
  while (value >= (name == 0 ? 1024 : 1023.995) && name < 5) {  // what two digits round to 1024
    value /= 1024;
    ++name;
  }
  char text[48];
  const bool whole = value == static_cast<double>(static_cast<std::uint64_t>(value));
  std::snprintf(text, sizeof text, whole ? "%.0f %s" : "%.2f %s", value, kNames[name]);
  return text;
}

std::string format_bytes_exactly(std::uint64_t bytes) {
  const std::string text = format_bytes(bytes);
  const bool rounded = text.find('.') != std::string::npos;
  return rounded ? text + " (" + std::to_string(bytes) + " bytes)" : text;
}

std::string format_number(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}
}  // namespace headrace::base
