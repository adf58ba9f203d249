// SPDX-License-Identifier: Apache-2.0
// pattern.hpp: bytes that are sent, another for each measurement, and whether they are what
// arrived.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace headrace::tools {
// All by one seed, word by word. Sizes and offsets are multiples of 8 bytes.
struct SentPattern {
  std::uint64_t seed = 0;
  // bf16 values, each 1 to 2 or -2 to -1: sums of 65,536 of one are exact in f32. Else any bits.
  bool gradients = false;

  std::uint64_t word(std::uint64_t index) const noexcept {
    std::uint64_t bits = (seed + index) * 0x9e3779b97f4a7c15;
    bits ^= bits >> 29;
    return gradients ? (bits & 0x807f807f807f807f) | 0x3f803f803f803f80 : bits;
  }
};

void fill(std::span<std::byte> bytes, const SentPattern& pattern) noexcept;
// The offset of the first word that is another; nothing: all are as filled.
std::optional<std::uint64_t> first_difference(std::span<const std::byte> bytes,
                                              const SentPattern& pattern) noexcept;
// The index of the first f32 sum that is not `times` the pattern's gradient `first` + index.
std::optional<std::uint64_t> first_wrong_sum(std::span<const float> sums,
                                             const SentPattern& pattern, std::uint64_t first,
                                             std::uint32_t times) noexcept;
// Of `count` gradients of the pattern from `first` on, each `times` itself.
double sum_squares(const SentPattern& pattern, std::uint64_t first, std::uint64_t count,
                   std::uint32_t times) noexcept;
}  // namespace headrace::tools
