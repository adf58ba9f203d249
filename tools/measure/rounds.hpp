// SPDX-License-Identifier: Apache-2.0
// rounds.hpp: in which order the measurements of a round are made. What is compared is measured in
// the same rounds, so what drifts or is disturbed is so for all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace headrace::tools {
// Which of `count` comes n-th: every round begins elsewhere, every second one runs backwards.
std::size_t in_turn(std::size_t n, std::size_t count, std::uint32_t round) noexcept;

// A round of different parts, all of them; a signal ends it between two. Throws kInterrupted.
void run_parts(std::vector<std::function<void()>> parts, bool backwards);

// So many rounds by measure(backwards), every second one backwards. `progress` gets the number of
// rounds done.
template <class Measure>
auto alternating_rounds(std::uint32_t rounds, const std::function<void(std::uint32_t)>& progress,
                        const Measure& measure) {
  std::vector<decltype(measure(false))> all;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    progress(round);
    all.push_back(measure(round % 2 == 1));
  }
  progress(rounds);
  return all;
}
}  // namespace headrace::tools
