// SPDX-License-Identifier: Apache-2.0
#include "base/error_text.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

namespace headrace::base {
std::string errno_text(int sys_errno) {
  const char* name = strerrorname_np(sys_errno);
  if (name == nullptr) return "errno " + std::to_string(sys_errno);
  return std::string(name) + " (" + strerrordesc_np(sys_errno) + ")";
}

namespace {
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}
}  // namespace

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string one_line(std::string_view text, std::size_t most) {
  std::string line;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool starts_character = (byte & 0xc0) != 0x80;
    if (line.size() >= most && starts_character) return line + "...";
    if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      line += escaped;
    } else {
      line += text[i];
    }
  }
  return line;
}

std::string quoted_name(std::string_view name) { return "'" + one_line(name, 200) + "'"; }
}  // namespace headrace::base
