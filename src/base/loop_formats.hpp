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
}  // namespace
}  // namespace headrace::base
