// SPDX-License-Identifier: Apache-2.0
// loop_formats.hpp: number formats as the vectorised loops read them, equal to number_formats.hpp.
//
// Everything has internal linkage, as in float_mode.hpp and for its reason.
#pragma once
#include <cstdint>

namespace headrace::base {
namespace {  // NOLINT(google-build-namespaces): see above
// fp16 to f32. No operand or result is denormal: some CPUs take a hundred cycles for one.
[[maybe_unused]] inline float widen_f16(std::uint16_t half) {
  const std::uint32_t magnitude = std::uint32_t{half} & 0x7fffu;
  const std::uint32_t moved = magnitude << 13;
  const float tiny = __builtin_bit_cast(float, moved + 0x38800000u) - 0x1p-14f;
  const std::uint32_t bits = magnitude >= 0x7c00u   ? moved + 0x70000000u
                             : magnitude >= 0x0400u ? moved + 0x38000000u
                                                    : __builtin_bit_cast(std::uint32_t, tiny);
  return __builtin_bit_cast(float, bits | (std::uint32_t{half} & 0x8000u) << 16);
}

// f32 to fp16, to nearest even. A NaN is canonical before.
[[maybe_unused]] inline std::uint16_t narrow_f16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude < 0x38800000u) {  // in multiples of 2^-24
    const float tiny = __builtin_bit_cast(float, magnitude) + 0.5f;
    half = __builtin_bit_cast(std::uint32_t, tiny) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    half = half < 0x7c00u ? half : 0x7c00u;
  }
  return static_cast<std::uint16_t>(half | sign);
}
}  // namespace
}  // namespace headrace::base
