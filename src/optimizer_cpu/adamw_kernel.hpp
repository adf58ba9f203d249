// SPDX-License-Identifier: Apache-2.0
// adamw_kernel.hpp: the update as plain loops over arrays, which the compiler vectorises for the
// instruction set of the file that includes this one.
//
// Everything has internal linkage and nothing from the standard library's templates or
// base/number_formats.hpp is used: an inline function compiled for AVX-512 here could be the copy
// that the linker keeps for the whole program (tests/optimizer_cpu/isolation.cmake looks). That the
// bits equal the reference's is what adamw_test.cpp shows.
#pragma once
#include "base/float_mode.hpp"
#include "optimizer_cpu/adamw_targets.hpp"

namespace headrace::optimizer_cpu {
namespace {  // NOLINT(google-build-namespaces): see above
using Bits16 = std::uint16_t;
using Bits32 = std::uint32_t;

inline float as_float(Bits32 bits) { return __builtin_bit_cast(float, bits); }
inline Bits32 as_bits(float value) { return __builtin_bit_cast(Bits32, value); }
inline float canonical(float value) { return value != value ? as_float(0x7fc00000u) : value; }

inline float widen(float value) { return value; }
inline float widen(Bits16 bf16) { return as_float(Bits32{bf16} << 16); }

// `load` gives element i of the master, `store` rounds and splits it; p is canonical.
struct SplitMaster {
  Bits16* __restrict weight;
  Bits16* __restrict residual;
  float load(std::uint64_t i) const {
    return as_float((Bits32{weight[i]} << 16) +
                    static_cast<Bits32>(static_cast<std::int16_t>(residual[i])));
  }
  void store(std::uint64_t i, float p) const {
    const Bits32 bits = as_bits(p);
    weight[i] = static_cast<Bits16>((bits + 0x8000u) >> 16);
    residual[i] = static_cast<Bits16>(bits);  // bits - (weight << 16), of which 16 bits are kept
  }
};
struct F32Master {
  Bits16* __restrict weight;
  float* __restrict master;
  float load(std::uint64_t i) const { return master[i]; }
  void store(std::uint64_t i, float p) const {
    const Bits32 bits = as_bits(p);  // the canonical NaN rounds to the canonical bf16 NaN
    weight[i] = static_cast<Bits16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    master[i] = p;
  }
};
struct WeightItself {
  float* __restrict weight;
  float load(std::uint64_t i) const { return weight[i]; }
  void store(std::uint64_t i, float p) const { weight[i] = p; }
};

template <class Master, class Gradient>
[[gnu::noinline]] void update(const Master master, const Gradient* __restrict gradient,
                              float* __restrict exp_avg, float* __restrict exp_avg_sq,
                              std::uint64_t elements, const AdamWStep s) noexcept {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
  for (std::uint64_t i = 0; i < elements; ++i) {
    const float g = widen(gradient[i]) * s.gradient_factor;
    const float p = master.load(i) * s.decay_factor;
    const float m = __builtin_fmaf(s.one_minus_beta1, g, s.beta1 * exp_avg[i]);
    const float v = __builtin_fmaf(s.one_minus_beta2 * g, g, s.beta2 * exp_avg_sq[i]);
    const float denominator = __builtin_fmaf(__builtin_sqrtf(v), s.inverse_sqrt_bias2, s.eps);
    exp_avg[i] = canonical(m);
    exp_avg_sq[i] = canonical(v);
    master.store(i, canonical(__builtin_fmaf(-s.step_size, m / denominator, p)));
  }
}

template <class Master>
void update_from(const Master master, const AdamWSpan& span, const AdamWStep& step) {
  if (span.gradient_dtype == DType::kF32) {
    update(master, static_cast<const float*>(span.gradient), span.exp_avg, span.exp_avg_sq,
           span.elements, step);
  } else {
    update(master, static_cast<const Bits16*>(span.gradient), span.exp_avg, span.exp_avg_sq,
           span.elements, step);
  }
}

inline void update_span(const AdamWSpan& span, const AdamWStep& step) {
  const base::DefaultFloatMode mode;
  switch (span.kind) {
    case MasterKind::kSplitResidual:
      update_from(SplitMaster{static_cast<Bits16*>(span.weight), static_cast<Bits16*>(span.master)},
                  span, step);
      break;
    case MasterKind::kF32:
      update_from(F32Master{static_cast<Bits16*>(span.weight), static_cast<float*>(span.master)},
                  span, step);
      break;
    case MasterKind::kWeightItself:
      update_from(WeightItself{static_cast<float*>(span.weight)}, span, step);
      break;
  }
}
}  // namespace
}  // namespace headrace::optimizer_cpu
