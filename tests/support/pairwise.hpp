// SPDX-License-Identifier: Apache-2.0
// pairwise.hpp: few rows of a table that still have every pair of values of two columns.
#pragma once
#include <array>
#include <cstddef>
#include <map>
#include <vector>

namespace headrace::testing {
// values(row): an int for each column. Greedy: the row that brings most pairs not seen yet is next.
template <class Row, class Values>
std::vector<Row> pairwise_cover(const std::vector<Row>& all, const Values& values) {
  std::vector<Row> cover;
  std::map<std::array<int, 4>, bool> seen;
  const auto each_pair = [&](const Row& row, const auto& visit) {
    const auto v = values(row);
    for (int a = 0; a < static_cast<int>(v.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(v.size()); ++b) visit(std::array{a, v[a], b, v[b]});
    }
  };
  for (;;) {
    const Row* best = nullptr;
    std::size_t best_new = 0;
    for (const Row& row : all) {
      std::size_t fresh = 0;
      each_pair(row, [&](const auto& pair) { fresh += seen.contains(pair) ? 0 : 1; });
      if (fresh <= best_new) continue;
      best_new = fresh;
      best = &row;
    }
    if (best == nullptr) return cover;
    each_pair(*best, [&](const auto& pair) { seen[pair] = true; });
    cover.push_back(*best);
  }
}
}  // namespace headrace::testing
