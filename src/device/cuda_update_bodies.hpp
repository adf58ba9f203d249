// SPDX-License-Identifier: Apache-2.0
// cuda_update_bodies.hpp: the arithmetic of the GPU's update, element by element: compiled by nvcc
// for the GPU (cuda_kernels.cu) and by the host's compiler for tests, which compare its bits with
// update_reference.cpp's.
//
// What makes the bits equal: every operation is one that IEEE 754 rounds to nearest, on either side
// (fma, division and square root too: CUDA Programming Guide, "Mathematical Functions"), in the
// order of update_span.hpp; denormals are kept; and a NaN, whose payload differs between the two,
// is made canonical before it is stored.
#pragma once
#include "device/cuda_kernel_bodies.hpp"
#include "kernels/random_bits.hpp"
#include "kernels/update_span.hpp"

namespace headrace::device::cuda {
using kernels::Arithmetic;
using kernels::as_float;
using kernels::canonical;
using kernels::is_square;
using kernels::kMaxMoments;
using kernels::kScaleBlock;
using kernels::MasterKind;
using kernels::moments;
using kernels::UpdateSpan;
using kernels::UpdateStep;

#ifdef __CUDA_ARCH__
HEADRACE_BOTH float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
HEADRACE_BOTH float quotient(float a, float b) { return __fdiv_rn(a, b); }
HEADRACE_BOTH float root(float a) { return __fsqrt_rn(a); }
#else
HEADRACE_BOTH float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HEADRACE_BOTH float quotient(float a, float b) { return a / b; }
HEADRACE_BOTH float root(float a) { return __builtin_sqrtf(a); }
#endif
// Of a normal number: -126 to 127.
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
  const auto below = static_cast<std::int32_t>(at<std::int16_t>(span.master, i));
  return as_float((std::uint32_t{at<std::uint16_t>(span.weight, i)} << 16) +
                  static_cast<std::uint32_t>(below));
}

HEADRACE_BOTH void store_master(const UpdateSpan& span, std::uint64_t i, float p) {
  if (span.kind == MasterKind::kWeightItself) {
    at<float>(span.weight, i) = p;
    return;
  }
  if (span.kind != MasterKind::kSplitResidual) {
    if (span.kind == MasterKind::kF32) {
      round_to(at<Bfloat>(span.weight, i), p);
    } else {
      round_to(at<Half>(span.weight, i), p);
    }
    at<float>(span.master, i) = p;
    return;
  }
  const std::uint32_t bits = as_bits(p), weight = (bits + 0x8000u) >> 16;
  at<std::uint16_t>(span.weight, i) = static_cast<std::uint16_t>(weight);
  at<std::uint16_t>(span.master, i) = static_cast<std::uint16_t>(bits - (weight << 16));
}

// ---- moments: moment_codecs.hpp says what their bytes mean ----

inline constexpr std::uint32_t kNanScale = 0xff;
inline constexpr std::uint32_t kMantissaBits = 3;

// Of codes of 8 bits.
struct CodeFormat {
  int exponent_bias;
  std::uint32_t largest;
};
HEADRACE_BOTH CodeFormat code_format(bool square) {
  return square ? CodeFormat{31, 0xff} : CodeFormat{15, 0x7f};
}

HEADRACE_BOTH float decode_code(std::uint32_t code, bool square, std::uint32_t scale) {
  if (scale == kNanScale) return as_float(0x7fc00000u);
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
  const CodeFormat format = code_format(square);
  const std::uint32_t whole = as_bits(value) & 0x7fffffffu;
  const float y = as_float(whole) * power_of_two(127 - static_cast<int>(scale));
  const int least_exponent = 1 - format.exponent_bias;
  std::uint32_t magnitude = 0;
  if (y < power_of_two(least_exponent)) {
    const float units = y * power_of_two(static_cast<int>(kMantissaBits) - least_exponent);
    magnitude = static_cast<std::uint32_t>(units + static_cast<float>(random) * 0x1p-16f);
  } else {
    const std::uint32_t rebased =
        as_bits(y) - (static_cast<std::uint32_t>(127 - format.exponent_bias) << 23);
    magnitude = (rebased + (random << 4)) >> 20;
  }
  if (square && whole != 0 && magnitude < 1) magnitude = 1;
  if (magnitude > format.largest) magnitude = format.largest;
  return square ? magnitude : magnitude | (as_bits(value) >> 24 & 0x80u);
}

HEADRACE_BOTH std::uint32_t scale_of(std::uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return kNanScale;
  const std::uint32_t exponent = (largest_bits + 0xfffffu) >> 23;
  return exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
}

// The moment's own 16 bits of element i.
HEADRACE_BOTH std::uint32_t random_half(const UpdateSpan& span, const UpdateStep& step,
                                        std::uint64_t i, std::uint32_t moment) {
  const std::uint64_t element = span.first_element + i;
  const std::uint32_t bits =
      kernels::random_bits(kernels::random_keys(step.random_key, element),
                           static_cast<std::uint32_t>(element % kernels::kRandomBlock));
  return moment == 0 ? bits & 0xffffu : bits >> 16;
}

HEADRACE_BOTH float moment_at(const UpdateSpan& span, const UpdateStep& step, std::uint64_t i,
                              std::uint32_t moment) {
  const void* const data = span.moment[moment];
  if (span.codec == MomentCodec::kF32) return at<float>(data, i);
  if (span.codec == MomentCodec::kBf16) return widen(at<Bfloat>(data, i));
  return decode_code(at<std::uint8_t>(data, i), is_square(step.arithmetic, moment),
                     span.moment_scale[moment][i / kScaleBlock]);
}

// kF32 and kBf16; `value` is canonical.
HEADRACE_BOTH void store_moment(const UpdateSpan& span, const UpdateStep& step, std::uint64_t i,
                                std::uint32_t moment, float value) {
  if (span.codec == MomentCodec::kF32) {
    at<float>(span.moment[moment], i) = value;
    return;
  }
  const std::uint32_t bits = as_bits(value);
  const bool rounds = (bits & 0x7fffffffu) < 0x7f7f0000u;
  at<std::uint16_t>(span.moment[moment], i) =
      static_cast<std::uint16_t>((rounds ? bits + random_half(span, step, i, moment) : bits) >> 16);
}
HEADRACE_BOTH void store_code(const UpdateSpan& span, const UpdateStep& step, std::uint64_t i,
                              std::uint32_t moment, float value, std::uint32_t scale) {
  const bool square = is_square(step.arithmetic, moment);
  at<std::uint8_t>(span.moment[moment], i) = static_cast<std::uint8_t>(
      scale == kNanScale ? 0
                         : encode_code(value, square, scale, random_half(span, step, i, moment)));
}

// ---- the rules: see update_span.hpp ----

// The new master; the moments become the new ones.
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

struct NewMoments {
  float value[kMaxMoments];
};
// Updates element i but for moments of 8 bits, whose scale depends on the whole block: they are
// what this returns.
HEADRACE_BOTH NewMoments update_element(const UpdateSpan& span, const UpdateStep& step,
                                        std::uint64_t i) {
  NewMoments fresh{};
  const std::uint32_t used = moments(step.arithmetic);
  // Bounds that are known, so that what is indexed stays in registers.
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
    if (span.codec != MomentCodec::kBlock8) store_moment(span, step, i, k, fresh.value[k]);
  }
  return fresh;
}
}  // namespace headrace::device::cuda
