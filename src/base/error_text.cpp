// SPDX-License-Identifier: Apache-2.0
#include "base/error_text.hpp"

#include <algorithm>
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
}  // namespace headrace::base
