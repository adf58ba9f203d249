// SPDX-License-Identifier: Apache-2.0
// random_bits.hpp: the bits of stochastic rounding. They are a function of (seed, parameter, step,
// element) alone, so tiles, threads and placement do not change them.
//
// For each 65,536 elements, a strong 64-bit mix gives two keys. From these, a cheap 32-bit mix
// gives the bits of each element. Everything has internal linkage: the kernels include this too.
#pragma once
#include <cstdint>

#include "base/sizes.hpp"
#include "kernels/both_sides.hpp"

namespace headrace::kernels {
using base::kBlockElements;

namespace {  // NOLINT(google-build-namespaces): see above

// Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", the finalizer with
// Stafford's constants (variant 13).
HEADRACE_BOTH std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
HEADRACE_BOTH std::uint64_t mix64(std::uint64_t key, std::uint64_t value) {
  return mix64(key + 0x9e3779b97f4a7c15u * (value + 1));
}

struct RandomKeys {
  std::uint32_t first, second;
};
// `element` of the parameter may be anywhere in its block.
HEADRACE_BOTH RandomKeys random_keys(std::uint64_t key, std::uint64_t element) {
  const std::uint64_t mixed = mix64(key, element / kBlockElements);
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

// 32 bits for element `in_block` of its block: the low 16 for its first moment, the high 16 for its
// second. No two elements get the same 32 bits from one pair of keys.
HEADRACE_BOTH std::uint32_t random_bits(RandomKeys keys, std::uint32_t in_block) {
  std::uint32_t x = in_block + keys.first;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) + keys.second;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
}  // namespace

// For values that are loaded. Values that were stored return unchanged, whatever the bits.
inline constexpr std::uint64_t kLoadKey = 0x6c6f6164;

// UpdateStep::random_key.
inline std::uint64_t random_key(std::uint64_t seed, std::uint64_t parameter, std::uint64_t t) {
  return mix64(mix64(mix64(seed, 0x68656164u), parameter), t);
}
}  // namespace headrace::kernels
