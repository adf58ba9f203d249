// SPDX-License-Identifier: Apache-2.0
// counts.hpp: numbers of the steps made and skipped, and of updates per parameter and group.
#pragma once
#include <cstdint>
#include <vector>

#include "partition/registry.hpp"

namespace headrace::engine {
// The counts that steps and loads change.
struct Counts {
  std::uint64_t step = 0, skipped = 0;        // steps made, and skipped for their gradients
  std::vector<std::uint64_t> steps;           // per parameter: updates so far
  std::vector<std::uint64_t> weight_changes;  // per group, since freeze()
  static std::uint64_t bookkeeping_bytes(const partition::Registry& registry) noexcept {
    return (registry.parameters().size() + registry.groups().size()) * sizeof(std::uint64_t);
  }
};
}  // namespace headrace::engine
