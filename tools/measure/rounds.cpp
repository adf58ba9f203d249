// SPDX-License-Identifier: Apache-2.0
#include "measure/rounds.hpp"

#include <algorithm>

#include "program/signals.hpp"

namespace headrace::tools {
std::size_t in_turn(std::size_t n, std::size_t count, std::uint32_t round) noexcept {
  const std::size_t turned = (n + round) % count;
  return round % 2 == 0 ? count - 1 - turned : turned;
}

void run_parts(std::vector<std::function<void()>> parts, bool backwards) {
  if (backwards) std::ranges::reverse(parts);
  for (const auto& part : parts) {
    check_signal();
    part();
  }
}
}  // namespace headrace::tools
