// SPDX-License-Identifier: Apache-2.0
// sizes.hpp: the sizes, in elements, that results and stored bytes hang on. They are no settings:
// with another one the same training has other bits.
#pragma once
#include <cstdint>

namespace headrace::base {
// What shares a scale where moments are stored in 8 bits.
inline constexpr std::uint64_t kScaleElements = 256;
// Parameters begin at multiples of it in their section.
inline constexpr std::uint64_t kParameterAlignment = 256;
// A block: what a partial sum of a gradient's squares is of, and what shares a pair of random keys.
// Shards and tiles are whole blocks.
inline constexpr std::uint64_t kBlockElements = 65536;
// A chunk: what one checksum covers of each stream, and what one worker updates at a time.
inline constexpr std::uint64_t kChunkElements = 131072;

static_assert(kParameterAlignment % kScaleElements == 0, "a scale is of one parameter");
static_assert(kBlockElements % kParameterAlignment == 0, "a scale is of one block");
static_assert(kChunkElements % kBlockElements == 0, "a block is of one chunk");
static_assert(kBlockElements <= std::uint64_t{1} << 32, "a place in a block has 32 bits");
}  // namespace headrace::base
