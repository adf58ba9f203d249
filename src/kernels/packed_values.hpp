// SPDX-License-Identifier: Apache-2.0
// packed_values.hpp: values on their way to other ranks, as small codes with one scale for each 256
// of them. CPU and GPU share this source.
//
// kInt8   parameters: multiples of the scale from -127 to 127, rounded to nearest, ties to even.
// kInt4   gradients: multiples from -7 to 7, rounded up or down at random, so that the mean is
//         right. The random bits depend on the element and on which of the sum's terms this is, not
//         on the rank, so the result does not depend on the number of ranks.
//
// After Wang et al., "ZeRO++", 2023, arXiv 2306.10209, sections 3.1 and 3.3, with codes of our own.
// A scale is a power of two in 8 bits, E8M0 as in "OCP Microscaling Formats" 1.0: 2^(scale - 127),
// and 255 for a block that holds a NaN or an infinity, all of which becomes NaN. It is the least of
// which the largest code reaches the largest value. So each product here is exact, and the bits are
// the same on every CPU and GPU. Int8 values that were unpacked do not change if they are packed
// and unpacked again.
//
// Example: four values of a block whose largest is 5.0, as kInt4. The scale is 1, since 7 x 0.5 is
// less than 5. 5.0 and -3.0 are the codes 5 and -3; 0.25 becomes 1 with probability 1/4, else 0.
//
// In memory: all codes, two of kInt4 in a byte, the first in its low half; then all scales.
#pragma once
#include <cstdint>

#include "base/sizes.hpp"
#include "headrace/tensor.hpp"
#include "kernels/both_sides.hpp"
#include "kernels/number_formats.hpp"
#include "kernels/random_bits.hpp"

namespace headrace::kernels {
using base::kScaleElements;

enum class Packing : std::uint8_t { kInt8, kInt4 };

// Both directions. `elements` is a multiple of kScaleElements, or the last block is a part of one.
struct PackWork {
  Packing packing = Packing::kInt8;
  DType dtype = DType::kF32;  // f32, bf16 or f16
  void* values = nullptr;     // read by pack, written by unpack
  std::uint64_t elements = 0;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  // To pack as kInt4: packing_key(), and the first value's element of its parameter, at which a
  // block begins.
  std::uint64_t random_key = 0;
  std::uint64_t first_element = 0;
};

// Without the scales. base::packed_bytes() counts both.
constexpr std::uint64_t code_bytes(Packing packing, std::uint64_t elements) {
  return packing == Packing::kInt8 ? elements : (elements + 1) / 2;
}

// Of the term with this number in the sum of a parameter's gradients, in the step behind `t`
// updates of the parameter.
inline std::uint64_t packing_key(std::uint64_t seed, std::uint64_t parameter, std::uint64_t t,
                                 std::uint64_t term) {
  constexpr std::uint64_t kGradients = 0x67726164;
  return mix64(random_key(mix64(seed, kGradients), parameter, t), term);
}

namespace {  // NOLINT(google-build-namespaces): see number_formats.hpp
inline constexpr std::uint32_t kPackedNan = 0xff;

// What a code is a multiple of, and its inverse. Scales from 1 to 253.
HEADRACE_BOTH float packed_step(std::uint32_t scale) { return as_float(scale << 23); }
HEADRACE_BOTH float packed_inverse(std::uint32_t scale) { return as_float((254 - scale) << 23); }

// `largest_bits`: the largest magnitude of a block. The smallest scale of f16 is its smallest
// denormal, so that every code is an f16.
HEADRACE_BOTH std::uint32_t packed_scale(Packing packing, DType dtype, std::uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return kPackedNan;
  // Carries into the exponent where the significand is above 127/64, or 7/4.
  const bool wide = packing == Packing::kInt8;
  const std::uint32_t exponent = (largest_bits + (wide ? 0x1ffffu : 0x1fffffu)) >> 23;
  const std::uint32_t lower = wide ? 6 : 2;
  const std::uint32_t least = wide && dtype == DType::kF16 ? 103 : 1;
  return exponent < least + lower ? least : exponent - lower;
}

// At the largest scale, codes that would come back as infinity are left out.
HEADRACE_BOTH std::int32_t largest_code(Packing packing, DType dtype, std::uint32_t scale) {
  if (packing == Packing::kInt4) return scale < 253 ? 7 : 3;
  return scale < (dtype == DType::kF16 ? 137u : 249u) ? 127 : 63;
}

HEADRACE_BOTH std::int32_t limited(std::int32_t code, std::int32_t largest) {
  return code > largest ? largest : code < -largest ? -largest : code;
}
// Of a block that is no NaN.
HEADRACE_BOTH std::int32_t int8_code(float value, float inverse, std::int32_t largest) {
  constexpr float kRounds = 0x1.8p23f;  // what is added to it is rounded to a whole number
  const float rounded = value * inverse + kRounds;
  return limited(static_cast<std::int32_t>(as_bits(rounded) - as_bits(kRounds)), largest);
}
// `random` has 16 bits.
HEADRACE_BOTH std::int32_t int4_code(float value, float inverse, std::int32_t largest,
                                     std::uint32_t random) {
  const float above = value * inverse + 8.0f;
  const float rounded = above + static_cast<float>(random) * 0x1p-16f;
  return limited(static_cast<std::int32_t>(rounded) - 8, largest);
}
HEADRACE_BOTH float unpacked(std::int32_t code, std::uint32_t scale) {
  if (scale == kPackedNan) return as_float(kCanonicalNan);
  return static_cast<float>(code) * packed_step(scale);
}
// The code in a byte of kInt8, or in the element's half of a byte of kInt4, which is 8 more.
HEADRACE_BOTH std::int32_t int8_of(std::uint8_t byte) { return static_cast<std::int8_t>(byte); }
HEADRACE_BOTH std::int32_t int4_of(std::uint8_t byte, std::uint64_t element) {
  return static_cast<std::int32_t>(element % 2 == 0 ? byte & 15u : byte >> 4) - 8;
}
}  // namespace
}  // namespace headrace::kernels
