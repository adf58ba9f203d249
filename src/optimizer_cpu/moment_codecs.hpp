// SPDX-License-Identifier: Apache-2.0
// moment_codecs.hpp: what the bytes of a stored moment mean, one element at a time. The kernels
// give the same bits.
//
// kF32      the value.
// kBf16     bf16, stochastically rounded.
// kBlock8   8 bits, and per 256 elements a scale of 8: the power of two 2^(scale - 127), as in
//           "OCP Microscaling Formats" 1.0 (E8M0; 255: the block holds a NaN or an infinity, and
//           all of it is NaN). A sum of squares is 5 bits of exponent and 3 of mantissa; any other
//           moment a sign, 4 and 3. Without exponent bits it is denormal: the codes reach 2^-33 and
//           2^-17 below the scale. Stochastically rounded, but that a sum of squares above 0 stays
//           above 0: what divides by its root would else divide by eps alone. Saturates at 1.6e38.
// After Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861),
// with codes that are computed rather than looked up.
//
// A value that was decoded is encoded to itself whatever the random bits.
#pragma once
#include <cstdint>

#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
// `random`: 16 bits. NaN is canonical in, and out.
std::uint16_t encode_bf16(float value, std::uint32_t random) noexcept;

// Of the block's largest magnitude.
std::uint8_t block8_scale(std::uint32_t largest_bits) noexcept;
std::uint8_t encode_block8(float value, bool square, std::uint8_t scale,
                           std::uint32_t random) noexcept;
float decode_block8(std::uint8_t code, bool square, std::uint8_t scale) noexcept;

// One stored moment of a span.
struct StoredMoment {
  MomentCodec codec = MomentCodec::kF32;
  bool square = false;
  std::uint32_t index = 0;          // 0 or 1: which half of the random bits
  std::uint64_t first_element = 0;  // as in UpdateSpan
  void* data = nullptr;
  std::uint8_t* scale = nullptr;  // kBlock8
};
void decode_moment(const StoredMoment& moment, std::uint64_t elements, float* out) noexcept;
// `key`: UpdateStep::random_key. NaNs are made canonical.
void encode_moment(const StoredMoment& moment, std::uint64_t key, const float* values,
                   std::uint64_t elements) noexcept;
}  // namespace headrace::optimizer_cpu
