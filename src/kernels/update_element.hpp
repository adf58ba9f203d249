// SPDX-License-Identifier: Apache-2.0
// update_element.hpp: defines an update, one element at a time. This source is the definition, the
// CPU's reference (update_reference.cpp) and the body of the GPU's kernel (device/cuda_grid.hpp).
// The vector kernels (update_kernel.hpp) do not use it, and give its bits.
//
// The bits are equal on CPU and GPU for these reasons. IEEE 754 rounds every operation to nearest
// (fma, division and square root too: CUDA Programming Guide, "Mathematical Functions"), and the
// order is the one written here. Nothing is contracted or flushed (cmake/headrace_cuda.cmake). The
// payload of a NaN differs between the two, so a NaN is made canonical before it is stored.
//
// Functions have internal linkage, as in number_formats.hpp.
#pragma once
#include <cstdint>

#include "kernels/number_formats.hpp"
#include "kernels/random_bits.hpp"
#include "kernels/update_span.hpp"

namespace headrace::kernels {
// The new moments of an element.
struct NewMoments {
  float value[kMaxMoments];
};

namespace {  // NOLINT(google-build-namespaces): see above
#ifdef __CUDA_ARCH__
HEADRACE_BOTH float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
HEADRACE_BOTH float quotient(float a, float b) { return __fdiv_rn(a, b); }
HEADRACE_BOTH float root(float a) { return __fsqrt_rn(a); }
#else
HEADRACE_BOTH float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HEADRACE_BOTH float quotient(float a, float b) { return a / b; }
HEADRACE_BOTH float root(float a) { return __builtin_sqrtf(a); }
#endif
// For a normal number: -126 to 127.
HEADRACE_BOTH float power_of_two(int exponent) {
  return as_float(static_cast<std::uint32_t>(exponent + 127) << 23);
}

template <class Value>
HEADRACE_BOTH Value& at(void* array, std::uint64_t i) {
  return static_cast<Value*>(array)[i];
}
template <class Value>
HEADRACE_BOTH const Value& at(const void* array, std::uint64_t i) {
  return static_cast<const Value*>(array)[i];
}

// ---- gradient and master ----

HEADRACE_BOTH float gradient_at(const UpdateSpan& span, std::uint64_t i) {
  if (span.gradient_dtype == DType::kF32) return at<float>(span.gradient, i);
  if (span.gradient_dtype == DType::kF16) return widen(at<Half>(span.gradient, i));
  return widen(at<Bfloat>(span.gradient, i));
}

HEADRACE_BOTH float master_at(const UpdateSpan& span, std::uint64_t i) {
  if (span.kind == MasterKind::kWeightItself) return at<float>(span.weight, i);
  if (span.kind != MasterKind::kSplitResidual) return at<float>(span.master, i);
  return join_master(at<std::uint16_t>(span.weight, i), at<std::uint16_t>(span.master, i));
}

// `p` is canonical. The weight of a split master is `p` rounded to nearest, ties away from zero;
// a weight beside an f32 master is rounded to nearest, ties to even.
HEADRACE_BOTH void store_master(const UpdateSpan& span, std::uint64_t i, float p) {
  if (span.kind == MasterKind::kWeightItself) {
    at<float>(span.weight, i) = p;
  } else if (span.kind == MasterKind::kSplitResidual) {
    const SplitMaster split = split_master(p);
    at<std::uint16_t>(span.weight, i) = split.weight;
    at<std::uint16_t>(span.master, i) = split.residual;
  } else {
    if (span.kind == MasterKind::kF32) {
      round_to(at<Bfloat>(span.weight, i), p);
    } else {
      round_to(at<Half>(span.weight, i), p);
    }
    at<float>(span.master, i) = p;
  }
}

// ---- how stored moments are encoded ----
//
// kF32      the value.
// kBf16     bf16, stochastically rounded.
// kBlock8   8 bits, and an 8-bit scale per 256 elements: the power of two 2^(scale - 127), as in
//           "OCP Microscaling Formats" 1.0 (E8M0; 255: the block holds a NaN or an infinity, and
//           all of it is NaN). A sum of squares has 5 bits of exponent and 3 of mantissa; any other
//           moment a sign, 4 and 3. An exponent field of 0 marks denormals, down to 2^-33 or 2^-17
//           times the scale. Rounding is stochastic, but a sum of squares above 0 stays above 0:
//           otherwise a division by its root would divide by eps alone. Saturates at 1.6e38.
// After Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861),
// with codes that are computed rather than looked up.
//
// Encoding a decoded value gives the same code, whatever the random bits. NaNs are canonical before
// and after. `random` has 16 bits.

inline constexpr std::uint32_t kNanScale = 0xff;
inline constexpr std::uint32_t kMantissaBits = 3;

struct CodeFormat {
  int exponent_bias;      // 2^(field - exponent_bias)
  std::uint32_t largest;  // code, without its sign
};
HEADRACE_BOTH CodeFormat code_format(bool square) {
  return square ? CodeFormat{31, 0xff} : CodeFormat{15, 0x7f};
}

HEADRACE_BOTH float decode_code(std::uint32_t code, bool square, std::uint32_t scale) {
  if (scale == kNanScale) return as_float(kCanonicalNan);
  const CodeFormat format = code_format(square);
  const std::uint32_t magnitude = code & format.largest;
  const std::uint32_t field = magnitude >> kMantissaBits, mantissa = magnitude & 7u;
  const int exponent = static_cast<int>(field < 1 ? 1 : field) - format.exponent_bias;
  const float significand = (field > 0 ? 1.0f : 0.0f) + static_cast<float>(mantissa) / 8;
  const int power = static_cast<int>(scale < 1 ? 1 : scale) - 127;
  const float value = significand * power_of_two(exponent) * power_of_two(power);
  return !square && (code & 0x80u) != 0 ? -value : value;
}

HEADRACE_BOTH std::uint32_t encode_code(float value, bool square, std::uint32_t scale,
                                        std::uint32_t random) {
  if (scale == kNanScale) return 0;
  const CodeFormat format = code_format(square);
  const std::uint32_t whole = as_bits(value) & 0x7fffffffu;
  const float y = as_float(whole) * power_of_two(127 - static_cast<int>(scale));
  const int least_exponent = 1 - format.exponent_bias;
  std::uint32_t magnitude = 0;
  if (y < power_of_two(least_exponent)) {
    const float units = y * power_of_two(static_cast<int>(kMantissaBits) - least_exponent);
    magnitude = static_cast<std::uint32_t>(units + static_cast<float>(random) * 0x1p-16f);
  } else {
    // y's bits with the format's bias, of which the last 20 are rounded off.
    const std::uint32_t rebased =
        as_bits(y) - (static_cast<std::uint32_t>(127 - format.exponent_bias) << 23);
    magnitude = (rebased + (random << 4)) >> 20;
  }
  if (square && whole != 0 && magnitude < 1) magnitude = 1;
  if (magnitude > format.largest) magnitude = format.largest;
  return square ? magnitude : magnitude | (as_bits(value) >> 24 & 0x80u);
}

// `largest_bits`: the largest magnitude of the block. The scale is the least power of two whose
// 1.875-fold is at least that, so that no code rounds past the last.
HEADRACE_BOTH std::uint32_t scale_of(std::uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return kNanScale;
  const std::uint32_t exponent = (largest_bits + 0xfffffu) >> 23;
  return exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
}

// Infinity, NaN, and values that would round to infinity are truncated.
HEADRACE_BOTH std::uint16_t stochastic_bf16(float value, std::uint32_t random) {
  const std::uint32_t bits = as_bits(value);
  const bool rounds = (bits & 0x7fffffffu) < 0x7f7f0000u;
  return static_cast<std::uint16_t>((rounds ? bits + random : bits) >> 16);
}

// 16 random bits for one moment of an element; `key` is UpdateStep::random_key.
HEADRACE_BOTH std::uint32_t random_half(std::uint64_t key, std::uint64_t element,
                                        std::uint32_t moment) {
  const std::uint32_t bits =
      random_bits(random_keys(key, element), static_cast<std::uint32_t>(element % kBlockElements));
  return moment == 0 ? bits & 0xffffu : bits >> 16;
}

HEADRACE_BOTH float moment_at(const UpdateSpan& span, const UpdateStep& step, std::uint64_t i,
                              std::uint32_t moment) {
  const void* const data = span.moment[moment];
  switch (span.codec) {
    case MomentCodec::kF32:
      return at<float>(data, i);
    case MomentCodec::kBf16:
      return widen(at<Bfloat>(data, i));
    case MomentCodec::kBlock8:
      break;
  }
  return decode_code(at<std::uint8_t>(data, i), is_square(step.arithmetic, moment),
                     span.moment_scale[moment][i / kScaleElements]);
}

// Not for codecs with scales; `value` is canonical.
HEADRACE_BOTH void store_moment(const UpdateSpan& span, const UpdateStep& step, std::uint64_t i,
                                std::uint32_t moment, float value) {
  switch (span.codec) {
    case MomentCodec::kF32:
      at<float>(span.moment[moment], i) = value;
      return;
    case MomentCodec::kBf16:
      at<std::uint16_t>(span.moment[moment], i) =
          stochastic_bf16(value, random_half(step.random_key, span.first_element + i, moment));
      return;
    case MomentCodec::kBlock8:
      return;  // store_code(), once the block's scale is known
  }
}
HEADRACE_BOTH void store_code(const UpdateSpan& span, const UpdateStep& step, std::uint64_t i,
                              std::uint32_t moment, float value, std::uint32_t scale) {
  at<std::uint8_t>(span.moment[moment], i) = static_cast<std::uint8_t>(
      encode_code(value, is_square(step.arithmetic, moment), scale,
                  random_half(step.random_key, span.first_element + i, moment)));
}

// ---- the rules ----

// Returns the new master, from the old master p and the gradient times its factor, g. Replaces the
// moments m and v by the new ones; only kAdam has a second, and kPlain has none.
// [rules]
HEADRACE_BOTH float updated(const UpdateStep& s, float g, float p, float& m, float& v) {
  if (s.l2 != 0) g = fused(s.l2, p, g);
  p *= s.decay_factor;
  switch (s.arithmetic) {
    case Arithmetic::kAdam:
      m = fused(s.one_minus_beta1, g, s.beta1 * m);
      v = fused(s.one_minus_beta2 * g, g, s.beta2 * v);
      return fused(-s.step_size, quotient(m, fused(root(v), s.inverse_sqrt_bias2, s.eps)), p);
    case Arithmetic::kAdagrad:
      m = fused(g, g, m);
      return fused(-s.step_size, quotient(g, root(m) + s.eps), p);
    case Arithmetic::kLion: {
      const float mean = fused(s.one_minus_beta1, g, s.beta1 * m);
      const float sign = mean > 0 ? 1.0f : mean < 0 ? -1.0f : mean;  // 0 and NaN stay
      m = fused(s.one_minus_beta2, g, s.beta2 * m);
      return fused(-s.step_size, sign, p);
    }
    case Arithmetic::kMomentum:
      m = fused(s.one_minus_beta1, g, s.beta1 * m);
      return fused(-s.step_size, s.lookahead != 0 ? fused(s.lookahead, m, g) : m, p);
    case Arithmetic::kPlain:
      break;
  }
  return fused(-s.step_size, g, p);
}
// [/rules]

// Updates element i, except moments with scales, which depend on the whole block: it returns these.
HEADRACE_BOTH NewMoments update_element(const UpdateSpan& span, const UpdateStep& step,
                                        std::uint64_t i) {
  NewMoments fresh{};
  const std::uint32_t used = moments(step.arithmetic);
  // The bounds are constants, so the arrays stay in registers.
  HEADRACE_UNROLLED
  for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
    if (k < used) fresh.value[k] = moment_at(span, step, i, k);
  }
  const float g = gradient_at(span, i) * step.gradient_factor;
  const float p = updated(step, g, master_at(span, i), fresh.value[0], fresh.value[1]);
  store_master(span, i, canonical(p));
  HEADRACE_UNROLLED
  for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
    if (k >= used) continue;
    fresh.value[k] = canonical(fresh.value[k]);
    if (!has_scales(span.codec)) store_moment(span, step, i, k, fresh.value[k]);
  }
  return fresh;
}
}  // namespace
}  // namespace headrace::kernels
