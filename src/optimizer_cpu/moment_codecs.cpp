// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/moment_codecs.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/float_mode.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr std::uint8_t kNanScale = 0xff;

// A code's parts: `bias` is what an exponent of 0 stands for, less one.
struct Format {
  int exponent_bias;      // 2^(field - exponent_bias)
  std::uint32_t largest;  // code, without its sign
};
constexpr Format format_of(bool square) {
  return square ? Format{.exponent_bias = 31, .largest = 0xff}
                : Format{.exponent_bias = 15, .largest = 0x7f};
}
constexpr std::uint32_t kMantissaBits = 3;

float power_of_two(int exponent) { return std::ldexp(1.0f, exponent); }

[[gnu::noinline]] std::uint8_t encode(float value, bool square, std::uint8_t scale,
                                      std::uint32_t random) {
  const Format format = format_of(square);
  const float y = std::fabs(value) * power_of_two(127 - scale);
  const int least_exponent = 1 - format.exponent_bias;
  std::uint32_t magnitude = 0;
  if (y < power_of_two(least_exponent)) {
    const float units = y * power_of_two(static_cast<int>(kMantissaBits) - least_exponent);
    magnitude = static_cast<std::uint32_t>(units + static_cast<float>(random) * 0x1p-16f);
  } else {
    // y's bits with the format's bias, of which the last 20 are rounded off.
    const std::uint32_t rebased = std::bit_cast<std::uint32_t>(y) -
                                  (static_cast<std::uint32_t>(127 - format.exponent_bias) << 23);
    magnitude = (rebased + (random << 4)) >> 20;
  }
  if (square && value != 0) magnitude = std::max(magnitude, 1u);
  magnitude = std::min(magnitude, format.largest);
  const std::uint32_t sign = !square && std::signbit(value) ? 0x80 : 0;
  return static_cast<std::uint8_t>(magnitude | sign);
}

[[gnu::noinline]] float decode(std::uint8_t code, bool square, std::uint8_t scale) {
  if (scale == kNanScale) return std::bit_cast<float>(kernels::kCanonicalNan);
  const Format format = format_of(square);
  const std::uint32_t magnitude = code & format.largest;
  const std::uint32_t field = magnitude >> kMantissaBits, mantissa = magnitude & 7u;
  const int exponent = std::max(static_cast<int>(field), 1) - format.exponent_bias;
  const float significand = (field > 0 ? 1.0f : 0.0f) + static_cast<float>(mantissa) / 8;
  const float value =
      significand * power_of_two(exponent) * power_of_two(std::max<int>(scale, 1) - 127);
  return !square && (code & 0x80) != 0 ? -value : value;
}
}  // namespace

std::uint16_t encode_bf16(float value, std::uint32_t random) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  // Infinity, NaN, and what would round to infinity.
  if ((bits & 0x7fffffffu) >= 0x7f7f0000u) return static_cast<std::uint16_t>(bits >> 16);
  return static_cast<std::uint16_t>((bits + random) >> 16);
}

// The least power of two whose 1.875-fold holds the value, so that no code rounds past the last.
std::uint8_t block8_scale(std::uint32_t largest_bits) noexcept {
  if (largest_bits >= 0x7f800000u) return kNanScale;
  return static_cast<std::uint8_t>(std::clamp((largest_bits + 0xfffffu) >> 23, 1u, 253u));
}

std::uint8_t encode_block8(float value, bool square, std::uint8_t scale,
                           std::uint32_t random) noexcept {
  const kernels::DefaultFloatMode mode;
  return encode(value, square, scale, random);
}

float decode_block8(std::uint8_t code, bool square, std::uint8_t scale) noexcept {
  const kernels::DefaultFloatMode mode;
  return decode(code, square, scale);
}

void decode_moment(const StoredMoment& moment, std::uint64_t elements, float* out) noexcept {
  const kernels::DefaultFloatMode mode;
  if (elements == 0) return;
  if (moment.codec == MomentCodec::kF32) {
    std::memcpy(out, moment.data, elements * sizeof(float));
  } else if (moment.codec == MomentCodec::kBf16) {
    const auto* const data = static_cast<const std::uint16_t*>(moment.data);
    for (std::uint64_t i = 0; i < elements; ++i) out[i] = kernels::bf16_to_f32(data[i]);
  } else {
    const auto* const data = static_cast<const std::uint8_t*>(moment.data);
    for (std::uint64_t i = 0; i < elements; ++i)
      out[i] = decode(data[i], moment.square, moment.scale[i / kScaleBlock]);
  }
}

namespace {
float canonical_of(float value) {
  return std::isnan(value) ? std::bit_cast<float>(kernels::kCanonicalNan) : value;
}

// The 16 random bits of element i.
std::uint32_t random_half(const StoredMoment& moment, std::uint64_t key, std::uint64_t i) {
  const std::uint64_t element = moment.first_element + i;
  const std::uint32_t bits =
      random_bits(random_keys(key, element), static_cast<std::uint32_t>(element % kRandomBlock));
  return moment.index == 0 ? bits & 0xffffu : bits >> 16;
}

void encode_scale_block(const StoredMoment& moment, std::uint64_t key, const float* values,
                        std::uint64_t first, std::uint64_t end) {
  auto* const data = static_cast<std::uint8_t*>(moment.data);
  std::uint32_t largest = 0;
  for (std::uint64_t i = first; i < end; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
  const std::uint8_t scale = block8_scale(largest);
  moment.scale[first / kScaleBlock] = scale;
  for (std::uint64_t i = first; i < end; ++i) {
    data[i] = scale == kNanScale
                  ? 0
                  : encode(values[i], moment.square, scale, random_half(moment, key, i));
  }
}
}  // namespace

void encode_moment(const StoredMoment& moment, std::uint64_t key, const float* values,
                   std::uint64_t elements) noexcept {
  const kernels::DefaultFloatMode mode;
  if (moment.codec == MomentCodec::kBlock8) {
    for (std::uint64_t first = 0; first < elements; first += kScaleBlock)
      encode_scale_block(moment, key, values, first, std::min(first + kScaleBlock, elements));
    return;
  }
  for (std::uint64_t i = 0; i < elements; ++i) {
    const float value = canonical_of(values[i]);
    if (moment.codec == MomentCodec::kF32) {
      static_cast<float*>(moment.data)[i] = value;
    } else {
      static_cast<std::uint16_t*>(moment.data)[i] = encode_bf16(value, random_half(moment, key, i));
    }
  }
}
}  // namespace headrace::optimizer_cpu
