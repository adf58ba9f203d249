// SPDX-License-Identifier: Apache-2.0
// sizes.hpp: the sizes, in elements, that determine results and stored bytes. They are not
// settings: with other values, the same training would give other bits.
#pragma once
#include <cstdint>

namespace headrace::base {
// These many elements share a scale if moments are stored in 8 bits.
inline constexpr std::uint64_t kScaleElements = 256;
// Bytes of values that pass between ranks as codes of so many bits, with a scale of 8 bits for each
// kScaleElements.
constexpr std::uint64_t packed_bytes(std::uint32_t bits, std::uint64_t elements) {
  return (elements * bits + 7) / 8 + (elements + kScaleElements - 1) / kScaleElements;
}
// Each parameter begins at a multiple of this in its section.
inline constexpr std::uint64_t kParameterAlignment = 256;
// A block: the unit of partial sums of squares, and of pairs of random keys. Shards and tiles are
// whole blocks.
inline constexpr std::uint64_t kBlockElements = 65536;
// A chunk: one checksum of each stream covers it, and one worker updates it at a time.
inline constexpr std::uint64_t kChunkElements = 131072;

static_assert(kParameterAlignment % kScaleElements == 0, "a scale is of one parameter");
static_assert(kBlockElements % kParameterAlignment == 0, "a scale is of one block");
static_assert(kChunkElements % kBlockElements == 0, "a block is of one chunk");
static_assert(kBlockElements <= std::uint64_t{1} << 32, "a place in a block has 32 bits");
}  // namespace headrace::base
