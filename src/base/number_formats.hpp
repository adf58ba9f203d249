// SPDX-License-Identifier: Apache-2.0
// number_formats.hpp: bf16 and the split master, in integers.
//
// The hardware's bf16 instructions flush denormals, so every conversion here is integer arithmetic:
// the same bits on every CPU and with any MXCSR.
#pragma once
#include <bit>
#include <cstdint>

namespace headrace::base {
inline constexpr std::uint32_t kCanonicalNan = 0x7fc00000u;

inline float bf16_to_f32(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

// Round to nearest, ties to even; every NaN becomes the canonical one.
inline std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(kCanonicalNan >> 16);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The split master: master bits == (weight << 16) + (signed) residual, with the weight rounded to
// nearest, ties away from zero. Exactly invertible for all but NaNs, which are made canonical
// first; the weight of a master within half a step of infinity is infinite.
struct SplitMaster {
  std::uint16_t weight;
  std::uint16_t residual;  // two's complement
};
inline SplitMaster split_master(float master) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(master);
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits = kCanonicalNan;
  const std::uint32_t weight = (bits + 0x8000u) >> 16;
  return {static_cast<std::uint16_t>(weight), static_cast<std::uint16_t>(bits - (weight << 16))};
}
inline float join_master(std::uint16_t weight, std::uint16_t residual) {
  const auto low = static_cast<std::int32_t>(static_cast<std::int16_t>(residual));
  return std::bit_cast<float>((std::uint32_t{weight} << 16) + static_cast<std::uint32_t>(low));
}
}  // namespace headrace::base
