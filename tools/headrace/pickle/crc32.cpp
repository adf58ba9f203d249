// SPDX-License-Identifier: Apache-2.0
#include "pickle/crc32.hpp"

#include <array>
#include <cstring>

namespace headrace::tools::pickle {
namespace {
constexpr std::uint32_t kPolynomial = 0xedb88320u;
constexpr std::size_t kSlices = 8;

// Table s: the checksum of a byte with s zero bytes after it, so that eight bytes take one round.
constexpr auto tables() {
  std::array<std::array<std::uint32_t, 256>, kSlices> all{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    all[0][byte] = value;
  }
  for (std::size_t s = 1; s < kSlices; ++s)
    for (std::uint32_t byte = 0; byte < 256; ++byte)
      all[s][byte] = (all[s - 1][byte] >> 8) ^ all[0][all[s - 1][byte] & 0xff];
  return all;
}
constexpr auto kTables = tables();

std::uint32_t round_of_eight(std::uint32_t value, const std::byte* bytes) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  word ^= value;
  std::uint32_t sum = 0;
  for (std::size_t s = 0; s < kSlices; ++s)
    sum ^= kTables[kSlices - 1 - s][(word >> (8 * s)) & 0xff];
  return sum;
}
}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  std::uint32_t value = ~before;
  for (; bytes.size() >= kSlices; bytes = bytes.subspan(kSlices))
    value = round_of_eight(value, bytes.data());
  for (const std::byte byte : bytes)
    value = (value >> 8) ^ kTables[0][(value ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~value;
}
}  // namespace headrace::tools::pickle
