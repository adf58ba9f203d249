// SPDX-License-Identifier: Apache-2.0
// adamw_reference.cpp: what is right, one element at a time. Every other kernel gives these bits.
#include <cmath>

#include "base/float_mode.hpp"
#include "base/number_formats.hpp"
#include "optimizer_cpu/adamw_targets.hpp"

namespace headrace::optimizer_cpu {
namespace {
float gradient_at(const AdamWSpan& span, std::uint64_t i) {
  if (span.gradient_dtype == DType::kF32) return static_cast<const float*>(span.gradient)[i];
  return base::bf16_to_f32(static_cast<const std::uint16_t*>(span.gradient)[i]);
}

float master_at(const AdamWSpan& span, std::uint64_t i) {
  switch (span.kind) {
    case MasterKind::kSplitResidual:
      return base::join_master(static_cast<const std::uint16_t*>(span.weight)[i],
                               static_cast<const std::uint16_t*>(span.master)[i]);
    case MasterKind::kF32:
      return static_cast<const float*>(span.master)[i];
    case MasterKind::kWeightItself:
      return static_cast<const float*>(span.weight)[i];
  }
  return 0;
}

void store_master(const AdamWSpan& span, std::uint64_t i, float p) {
  switch (span.kind) {
    case MasterKind::kSplitResidual: {
      const base::SplitMaster split = base::split_master(p);
      static_cast<std::uint16_t*>(span.weight)[i] = split.weight;
      static_cast<std::uint16_t*>(span.master)[i] = split.residual;
      break;
    }
    case MasterKind::kF32:
      static_cast<std::uint16_t*>(span.weight)[i] = base::f32_to_bf16(p);
      static_cast<float*>(span.master)[i] = p;
      break;
    case MasterKind::kWeightItself:
      static_cast<float*>(span.weight)[i] = p;
      break;
  }
}

float canonical(float value) {
  return std::isnan(value) ? std::bit_cast<float>(base::kCanonicalNan) : value;
}

[[gnu::noinline]] void update(const AdamWSpan& span, const AdamWStep& s) {
  for (std::uint64_t i = 0; i < span.elements; ++i) {
    const float g = gradient_at(span, i) * s.gradient_factor;
    float p = master_at(span, i) * s.decay_factor;
    const float m = std::fma(s.one_minus_beta1, g, s.beta1 * span.exp_avg[i]);
    const float v = std::fma(s.one_minus_beta2 * g, g, s.beta2 * span.exp_avg_sq[i]);
    p = std::fma(-s.step_size, m / std::fma(std::sqrt(v), s.inverse_sqrt_bias2, s.eps), p);
    span.exp_avg[i] = canonical(m);
    span.exp_avg_sq[i] = canonical(v);
    store_master(span, i, canonical(p));
  }
}
}  // namespace

void adamw_reference(const AdamWSpan& span, const AdamWStep& step) noexcept {
  const base::DefaultFloatMode mode;
  update(span, step);
}
}  // namespace headrace::optimizer_cpu
