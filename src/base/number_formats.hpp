// SPDX-License-Identifier: Apache-2.0
// number_formats.hpp: bf16, fp16 and the split master, in integers.
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

// IEEE 754 binary16; exact. A NaN keeps its payload.
inline float f16_to_f32(std::uint16_t value) {
  const std::uint32_t sign = std::uint32_t{value & 0x8000u} << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fu;
  std::uint32_t mantissa = value & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  std::uint32_t shift = 0;
  for (; (mantissa & 0x400u) == 0; ++shift) mantissa <<= 1;
  return std::bit_cast<float>(sign | (113 - shift) << 23 | (mantissa & 0x3ffu) << 13);
}

// Round to nearest, ties to even, to infinity from 65,520 on; every NaN becomes the canonical one.
inline std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  // `whole` in units of the result's last place, and what is dropped of it.
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t shift = exponent >= 113 ? 13 : exponent >= 102 ? 126 - exponent : 25;
  const std::uint32_t significand =
      exponent >= 113 ? magnitude - (112u << 23) : (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t whole = significand >> shift;
  const std::uint32_t dropped = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
  const bool up = dropped > half || (dropped == half && (whole & 1u) != 0);
  return static_cast<std::uint16_t>(sign | (whole + (up ? 1 : 0)));
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
