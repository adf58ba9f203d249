// SPDX-License-Identifier: Apache-2.0
// number_formats.hpp: bf16, fp16 and the split master, widened exactly and rounded to nearest once.
// Ties go to even, but away from zero in a split master's weight. CPU and GPU share this source.
//
// The hardware's bf16 instructions flush denormals, so these functions use integers: the same bits
// on every CPU, whether or not MXCSR flushes. Denormals of fp16 take one float operation without
// denormal operands or results, since those cost some CPUs a hundred cycles.
//
// Functions have internal linkage, for the reason given in float_mode.hpp.
#pragma once
#include <cstdint>

#include "kernels/both_sides.hpp"

namespace headrace::kernels {
inline constexpr std::uint32_t kCanonicalNan = 0x7fc00000u;

struct Bfloat {
  std::uint16_t bits;
};
struct Half {  // IEEE 754 binary16
  std::uint16_t bits;
};

// master bits == (weight << 16) + (signed) residual, with the weight rounded to nearest, ties away
// from zero. The split is exactly invertible except for NaNs, which are made canonical first. A
// master within half a step of infinity has an infinite weight.
struct SplitMaster {
  std::uint16_t weight;
  std::uint16_t residual;  // two's complement
};

namespace {  // NOLINT(google-build-namespaces): see above
HEADRACE_BOTH float as_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
HEADRACE_BOTH std::uint32_t as_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
HEADRACE_BOTH std::uint32_t canonical_bits(float value) {
  return value != value ? kCanonicalNan : as_bits(value);
}
HEADRACE_BOTH float canonical(float value) { return as_float(canonical_bits(value)); }

HEADRACE_BOTH float bf16_to_f32(std::uint16_t value) {
  return as_float(std::uint32_t{value} << 16);
}

// Every NaN becomes the canonical one.
HEADRACE_BOTH std::uint16_t f32_to_bf16(float value) {
  // a NaN is canonical here, and rounds to the canonical bf16 NaN
  const std::uint32_t bits = canonical_bits(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// A NaN keeps its payload.
HEADRACE_BOTH float f16_to_f32(std::uint16_t half) {
  const std::uint32_t magnitude = std::uint32_t{half} & 0x7fffu;
  const std::uint32_t moved = magnitude << 13;
  const float tiny = as_float(moved + 0x38800000u) - 0x1p-14f;
  const std::uint32_t bits = magnitude >= 0x7c00u   ? moved + 0x70000000u
                             : magnitude >= 0x0400u ? moved + 0x38000000u
                                                    : as_bits(tiny);
  return as_float(bits | (std::uint32_t{half} & 0x8000u) << 16);
}

// The result is infinite from 65,520 on. A NaN must be canonical already.
HEADRACE_BOTH std::uint16_t canonical_to_f16(float value) {
  const std::uint32_t bits = as_bits(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude < 0x38800000u) {  // in multiples of 2^-24
    const float tiny = as_float(magnitude) + 0.5f;
    half = as_bits(tiny) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    half = half < 0x7c00u ? half : 0x7c00u;
  }
  return static_cast<std::uint16_t>(half | sign);
}
// Every NaN becomes the canonical one.
HEADRACE_BOTH std::uint16_t f32_to_f16(float value) { return canonical_to_f16(canonical(value)); }

HEADRACE_BOTH SplitMaster split_master(float master) {
  const std::uint32_t bits = canonical_bits(master), weight = (bits + 0x8000u) >> 16;
  return {static_cast<std::uint16_t>(weight), static_cast<std::uint16_t>(bits - (weight << 16))};
}
HEADRACE_BOTH float join_master(std::uint16_t weight, std::uint16_t residual) {
  const auto below = static_cast<std::int32_t>(static_cast<std::int16_t>(residual));
  return as_float((std::uint32_t{weight} << 16) + static_cast<std::uint32_t>(below));
}

// The same by type, for loops that are written once for all three formats.
HEADRACE_BOTH float widen(float value) { return value; }
HEADRACE_BOTH float widen(Bfloat value) { return bf16_to_f32(value.bits); }
HEADRACE_BOTH float widen(Half value) { return f16_to_f32(value.bits); }
HEADRACE_BOTH void round_to(float& out, float value) { out = canonical(value); }
HEADRACE_BOTH void round_to(Bfloat& out, float value) { out.bits = f32_to_bf16(value); }
HEADRACE_BOTH void round_to(Half& out, float value) { out.bits = f32_to_f16(value); }
}  // namespace
}  // namespace headrace::kernels
