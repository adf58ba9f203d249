// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/pattern.hpp"

#include <bit>
#include <cstring>

namespace headrace::tools {
namespace {
float gradient(const SentPattern& pattern, std::uint64_t index) noexcept {
  const std::uint64_t bits = pattern.word(index / 4) >> (16 * (index % 4));
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits & 0xffff) << 16);
}
}  // namespace

void fill(std::span<std::byte> bytes, const SentPattern& pattern) noexcept {
  for (std::uint64_t i = 0; i < bytes.size() / 8; ++i) {
    const std::uint64_t word = pattern.word(i);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
}

std::optional<std::uint64_t> first_difference(std::span<const std::byte> bytes,
                                              const SentPattern& pattern) noexcept {
  for (std::uint64_t i = 0; i < bytes.size() / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    if (word != pattern.word(i)) return 8 * i;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> first_wrong_sum(std::span<const float> sums,
                                             const SentPattern& pattern, std::uint64_t first,
                                             std::uint32_t times) noexcept {
  const auto factor = static_cast<float>(times);
  for (std::uint64_t i = 0; i < sums.size(); ++i) {
    if (sums[i] != factor * gradient(pattern, first + i)) return i;
  }
  return std::nullopt;
}

double sum_squares(const SentPattern& pattern, std::uint64_t first, std::uint64_t count,
                   std::uint32_t times) noexcept {
  double sum = 0;
  for (std::uint64_t i = first; i < first + count; ++i) {
    const double value = static_cast<double>(times) * gradient(pattern, i);
    sum += value * value;
  }
  return sum;
}
}  // namespace headrace::tools
