// SPDX-License-Identifier: Apache-2.0
// update_reference.cpp: what is right, one element at a time. Every other kernel gives these bits.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/float_mode.hpp"
#include "kernels/number_formats.hpp"
#include "optimizer_cpu/moment_codecs.hpp"

namespace headrace::optimizer_cpu {
namespace {
float gradient_at(const UpdateSpan& span, std::uint64_t i) {
  if (span.gradient_dtype == DType::kF32) return static_cast<const float*>(span.gradient)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(span.gradient)[i];
  return span.gradient_dtype == DType::kBf16 ? kernels::bf16_to_f32(bits)
                                             : kernels::f16_to_f32(bits);
}

float master_at(const UpdateSpan& span, std::uint64_t i) {
  switch (span.kind) {
    case MasterKind::kSplitResidual:
      return kernels::join_master(static_cast<const std::uint16_t*>(span.weight)[i],
                                  static_cast<const std::uint16_t*>(span.master)[i]);
    case MasterKind::kF32:
    case MasterKind::kF32OfF16:
      return static_cast<const float*>(span.master)[i];
    case MasterKind::kWeightItself:
      return static_cast<const float*>(span.weight)[i];
  }
  return 0;
}

void store_master(const UpdateSpan& span, std::uint64_t i, float p) {
  switch (span.kind) {
    case MasterKind::kSplitResidual: {
      const kernels::SplitMaster split = kernels::split_master(p);
      static_cast<std::uint16_t*>(span.weight)[i] = split.weight;
      static_cast<std::uint16_t*>(span.master)[i] = split.residual;
      break;
    }
    case MasterKind::kF32:
      static_cast<std::uint16_t*>(span.weight)[i] = kernels::f32_to_bf16(p);
      static_cast<float*>(span.master)[i] = p;
      break;
    case MasterKind::kF32OfF16:
      static_cast<std::uint16_t*>(span.weight)[i] = kernels::f32_to_f16(p);
      static_cast<float*>(span.master)[i] = p;
      break;
    case MasterKind::kWeightItself:
      static_cast<float*>(span.weight)[i] = p;
      break;
  }
}

float canonical(float value) {
  return std::isnan(value) ? std::bit_cast<float>(kernels::kCanonicalNan) : value;
}

// The new master; the moments become the new ones.
float updated(const UpdateStep& s, float g, float p, float (&moment)[kMaxMoments]) {
  if (s.l2 != 0) g = std::fma(s.l2, p, g);
  p *= s.decay_factor;
  switch (s.arithmetic) {
    case Arithmetic::kAdam: {
      auto& [m, v] = moment;
      m = std::fma(s.one_minus_beta1, g, s.beta1 * m);
      v = std::fma(s.one_minus_beta2 * g, g, s.beta2 * v);
      return std::fma(-s.step_size, m / std::fma(std::sqrt(v), s.inverse_sqrt_bias2, s.eps), p);
    }
    case Arithmetic::kAdagrad: {
      float& sum = moment[0];
      sum = std::fma(g, g, sum);
      return std::fma(-s.step_size, g / (std::sqrt(sum) + s.eps), p);
    }
    case Arithmetic::kLion: {
      float& m = moment[0];
      const float c = std::fma(s.one_minus_beta1, g, s.beta1 * m);
      const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : c;  // 0 and NaN stay what they are
      m = std::fma(s.one_minus_beta2, g, s.beta2 * m);
      return std::fma(-s.step_size, sign, p);
    }
    case Arithmetic::kMomentum: {
      float& m = moment[0];
      m = std::fma(s.one_minus_beta1, g, s.beta1 * m);
      return std::fma(-s.step_size, s.lookahead != 0 ? std::fma(s.lookahead, m, g) : m, p);
    }
    case Arithmetic::kPlain:
      return std::fma(-s.step_size, g, p);
  }
  return p;
}

StoredMoment stored(const UpdateSpan& span, const UpdateStep& step, std::uint32_t moment,
                    std::uint64_t first) {
  auto* const data = static_cast<std::byte*>(span.moment[moment]);
  return {.codec = span.codec,
          .square = is_square(step.arithmetic, moment),
          .index = moment,
          .first_element = span.first_element + first,
          .data = data + first * moment_bytes(span.codec),
          .scale = span.codec == MomentCodec::kBlock8
                       ? span.moment_scale[moment] + first / kScaleBlock
                       : nullptr};
}

[[gnu::noinline]] void update_block(const UpdateSpan& span, const UpdateStep& step,
                                    std::uint64_t first, std::uint64_t count) {
  float values[kMaxMoments][kScaleBlock] = {};
  const std::uint32_t used = moments(step.arithmetic);
  for (std::uint32_t k = 0; k < used; ++k)
    decode_moment(stored(span, step, k, first), count, values[k]);
  for (std::uint64_t i = 0; i < count; ++i) {
    float moment[kMaxMoments] = {values[0][i], values[1][i]};
    const float g = gradient_at(span, first + i) * step.gradient_factor;
    const float p = updated(step, g, master_at(span, first + i), moment);
    store_master(span, first + i, canonical(p));
    for (std::uint32_t k = 0; k < used; ++k) values[k][i] = canonical(moment[k]);
  }
  for (std::uint32_t k = 0; k < used; ++k)
    encode_moment(stored(span, step, k, first), step.random_key, values[k], count);
}
}  // namespace

void update_reference(const UpdateSpan& span, const UpdateStep& step) noexcept {
  const kernels::DefaultFloatMode mode;
  for (std::uint64_t first = 0; first < span.elements; first += kScaleBlock)
    update_block(span, step, first, std::min(kScaleBlock, span.elements - first));
}
}  // namespace headrace::optimizer_cpu
