// SPDX-License-Identifier: Apache-2.0
// update_kernel.hpp: the update as plain loops over arrays, which the compiler vectorises for the
// instruction set of the file that includes this one.
//
// Everything has internal linkage and nothing from the standard library's templates or
// base/number_formats.hpp is used: an inline function compiled for AVX-512 here could be the copy
// that the linker keeps for the whole program (tests/optimizer_cpu/isolation.cmake looks). That the
// bits equal the reference's is what update_test.cpp shows.
#pragma once
#include "base/float_mode.hpp"
#include "base/loop_formats.hpp"
#include "optimizer_cpu/random_bits.hpp"
#include "optimizer_cpu/update_targets.hpp"

namespace headrace::optimizer_cpu {
namespace {  // NOLINT(google-build-namespaces): see above
using Bits8 = std::uint8_t;
using Bits16 = std::uint16_t;
using Bits32 = std::uint32_t;
using Index = std::uint64_t;

inline float as_float(Bits32 bits) { return __builtin_bit_cast(float, bits); }
inline Bits32 as_bits(float value) { return __builtin_bit_cast(Bits32, value); }
inline float canonical(float value) { return value != value ? as_float(0x7fc00000u) : value; }

// ---- what a gradient is; `from` begins at a later element ----

struct F32Gradient {
  const float* __restrict data;
  F32Gradient from(Index i) const { return {data + i}; }
  float load(Index i) const { return data[i]; }
};
struct Bf16Gradient {
  const Bits16* __restrict data;
  Bf16Gradient from(Index i) const { return {data + i}; }
  float load(Index i) const { return as_float(Bits32{data[i]} << 16); }
};
struct F16Gradient {
  const Bits16* __restrict data;
  F16Gradient from(Index i) const { return {data + i}; }
  float load(Index i) const { return base::widen_f16(data[i]); }
};

// ---- what a master is: `load` gives element i, `store` rounds and splits it; p is canonical ----

struct SplitMaster {
  Bits16* __restrict weight;
  Bits16* __restrict residual;
  SplitMaster from(Index i) const { return {weight + i, residual + i}; }
  float load(Index i) const {
    return as_float((Bits32{weight[i]} << 16) +
                    static_cast<Bits32>(static_cast<std::int16_t>(residual[i])));
  }
  void store(Index i, float p) const {
    const Bits32 bits = as_bits(p);
    weight[i] = static_cast<Bits16>((bits + 0x8000u) >> 16);
    residual[i] = static_cast<Bits16>(bits);  // bits - (weight << 16), of which 16 bits are kept
  }
};
struct F32Master {
  Bits16* __restrict weight;
  float* __restrict master;
  F32Master from(Index i) const { return {weight + i, master + i}; }
  float load(Index i) const { return master[i]; }
  void store(Index i, float p) const {
    const Bits32 bits = as_bits(p);  // the canonical NaN rounds to the canonical bf16 NaN
    weight[i] = static_cast<Bits16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    master[i] = p;
  }
};
struct F16Master {
  Bits16* __restrict weight;
  float* __restrict master;
  F16Master from(Index i) const { return {weight + i, master + i}; }
  float load(Index i) const { return master[i]; }
  void store(Index i, float p) const {
    const Bits32 bits = as_bits(p);
    const Bits32 magnitude = bits & 0x7fffffffu;
    const Bits32 tiny = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;  // multiples of 2^-24
    const Bits32 usual = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Bits32 capped = usual < 0x7c00u ? usual : 0x7c00u;
    // Masks: a choice between these would be a branch, and the loop not vectorised.
    const Bits32 is_tiny = 0u - static_cast<Bits32>(magnitude < 0x38800000u);
    const Bits32 is_nan = 0u - static_cast<Bits32>(magnitude > 0x7f800000u);
    const Bits32 half = (tiny & is_tiny) | (capped & ~is_tiny) | (0x200u & is_nan);
    weight[i] = static_cast<Bits16>(half | ((bits >> 16) & 0x8000u));
    master[i] = p;
  }
};
struct WeightItself {
  float* __restrict weight;
  WeightItself from(Index i) const { return {weight + i}; }
  float load(Index i) const { return weight[i]; }
  void store(Index i, float p) const { weight[i] = p; }
};

// ---- how moments are stored; what is stored is canonical ----

struct NoMoments {
  float load(Index, int) const { return 0; }
  Bits32 random(Index) const { return 0; }
  void store(Index, int, float, Bits32) const {}
};
struct F32Moments {
  float* __restrict first;
  float* __restrict second;
  float load(Index i, int moment) const { return moment == 0 ? first[i] : second[i]; }
  Bits32 random(Index) const { return 0; }
  void store(Index i, int moment, float value, Bits32) const {
    (moment == 0 ? first : second)[i] = value;
  }
};
// Stochastic rounding: up with the probability that the dropped 16 bits are of a step. Values that
// would round to infinity are truncated.
struct Bf16Moments {
  Bits16* __restrict first;
  Bits16* __restrict second;
  RandomKeys keys;
  Bits32 in_block;  // of element 0
  float load(Index i, int moment) const {
    return as_float(Bits32{moment == 0 ? first[i] : second[i]} << 16);
  }
  Bits32 random(Index i) const { return random_bits(keys, in_block + static_cast<Bits32>(i)); }
  void store(Index i, int moment, float value, Bits32 random) const {
    const Bits32 bits = as_bits(value);
    const Bits32 added = moment == 0 ? random & 0xffffu : random >> 16;
    const Bits32 rounded = (bits & 0x7fff0000u) >= 0x7f7f0000u ? bits : bits + added;
    (moment == 0 ? first : second)[i] = static_cast<Bits16>(rounded >> 16);
  }
};

// ---- the rules: see update.hpp ----

inline float with_l2(const UpdateStep& s, float g, float p) {
  return s.l2 != 0 ? __builtin_fmaf(s.l2, p, g) : g;
}
struct Adam {
  static constexpr int kMoments = 2;
  static float apply(const UpdateStep& s, float g, float p, float& m, float& v) {
    g = with_l2(s, g, p);
    p *= s.decay_factor;
    m = __builtin_fmaf(s.one_minus_beta1, g, s.beta1 * m);
    v = __builtin_fmaf(s.one_minus_beta2 * g, g, s.beta2 * v);
    const float denominator = __builtin_fmaf(__builtin_sqrtf(v), s.inverse_sqrt_bias2, s.eps);
    return __builtin_fmaf(-s.step_size, m / denominator, p);
  }
};
struct Adagrad {
  static constexpr int kMoments = 1;
  static float apply(const UpdateStep& s, float g, float p, float& sum, float&) {
    g = with_l2(s, g, p);
    p *= s.decay_factor;
    sum = __builtin_fmaf(g, g, sum);
    return __builtin_fmaf(-s.step_size, g / (__builtin_sqrtf(sum) + s.eps), p);
  }
};
struct Lion {
  static constexpr int kMoments = 1;
  static float apply(const UpdateStep& s, float g, float p, float& m, float&) {
    g = with_l2(s, g, p);
    p *= s.decay_factor;
    const float c = __builtin_fmaf(s.one_minus_beta1, g, s.beta1 * m);
    const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : c;
    m = __builtin_fmaf(s.one_minus_beta2, g, s.beta2 * m);
    return __builtin_fmaf(-s.step_size, sign, p);
  }
};
struct Momentum {
  static constexpr int kMoments = 1;
  static float apply(const UpdateStep& s, float g, float p, float& m, float&) {
    g = with_l2(s, g, p);
    p *= s.decay_factor;
    m = __builtin_fmaf(s.one_minus_beta1, g, s.beta1 * m);
    const float direction = s.lookahead != 0 ? __builtin_fmaf(s.lookahead, m, g) : m;
    return __builtin_fmaf(-s.step_size, direction, p);
  }
};
struct Plain {
  static constexpr int kMoments = 0;
  static float apply(const UpdateStep& s, float g, float p, float&, float&) {
    g = with_l2(s, g, p);
    return __builtin_fmaf(-s.step_size, g, p * s.decay_factor);
  }
};

template <class Rule, class Master, class Gradient, class Moments>
[[gnu::noinline]] void update(const Master master, const Gradient gradient, const Moments moments,
                              Index elements, const UpdateStep s) noexcept {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
  for (Index i = 0; i < elements; ++i) {
    float m = Rule::kMoments > 0 ? moments.load(i, 0) : 0;
    float v = Rule::kMoments > 1 ? moments.load(i, 1) : 0;
    const Bits32 random = moments.random(i);
    const float p = Rule::apply(s, gradient.load(i) * s.gradient_factor, master.load(i), m, v);
    if (Rule::kMoments > 0) moments.store(i, 0, canonical(m), random);
    if (Rule::kMoments > 1) moments.store(i, 1, canonical(v), random);
    master.store(i, canonical(p));
  }
}

// ---- moments of 8 bits, a scale per 256 elements (moment_codecs.hpp says what the codes mean)
// ----

// A sum of squares has no sign and 5 bits of exponent; any other moment has both a sign and 4.
template <bool kSquare>
struct Block8 {
  static constexpr Bits32 kBelow = kSquare ? 96 : 112;  // exponent of the least normal, - 1
  static constexpr float kTiny = kSquare ? 0x1p-33f : 0x1p-17f;  // code 1
  static constexpr float kTinies = kSquare ? 0x1p33f : 0x1p17f;
  static constexpr Bits32 kLargest = kSquare ? 0xff : 0x7f;

  static void decode(const Bits8* __restrict code, Bits8 scale, float* __restrict out,
                     Index elements) {
    const Bits32 power = scale < 1 ? 1 : scale;  // 0: never stored
    const float factor = as_float(scale == 0xff ? 0x7fc00000u : power << 23);
    for (Index i = 0; i < elements; ++i) {
      const Bits32 magnitude = code[i] & kLargest;
      const float tiny = static_cast<float>(static_cast<std::int32_t>(magnitude)) * kTiny;
      const Bits32 usual = (magnitude << 20) + (kBelow << 23);
      const Bits32 sign = kSquare ? 0 : (Bits32{code[i]} & 0x80u) << 24;
      out[i] = as_float((magnitude >= 8 ? usual : as_bits(tiny)) | sign) * factor;
    }
  }

  // Returns the scale. `random`: bits of each element, of which this moment's 16 begin at `shift`.
  static Bits8 encode(const float* __restrict value, Bits8* __restrict code, Index elements,
                      const Bits32* __restrict random_of, int shift) {
    Bits32 most = 0;
    for (Index i = 0; i < elements; ++i) {
      const Bits32 magnitude = as_bits(value[i]) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
    }
    const Bits32 exponent = (most + 0xfffffu) >> 23;
    const Bits32 scale = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    const float factor = as_float((254 - scale) << 23);
    const Bits32 kept = most >= 0x7f800000u ? 0 : 0xffu;  // else all of the block is NaN
    for (Index i = 0; i < elements; ++i) {
      const Bits32 bits = as_bits(value[i]);
      const float y = as_float(bits & 0x7fffffffu) * factor;
      const Bits32 random = (random_of[i] >> shift) & 0xffffu;
      const Bits32 usual = (as_bits(y) - (kBelow << 23) + (random << 4)) >> 20;
      const float share = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-16f;
      // The comparison bounds what is converted, also in lanes whose result is not taken.
      const bool is_tiny = as_bits(y) < ((kBelow + 1) << 23);
      const float tiny = is_tiny ? y * kTinies + share : 0;
      const Bits32 whole = bits & 0x7fffffffu;
      const Bits32 least = !kSquare ? 0 : whole < 1 ? whole : 1;
      Bits32 magnitude = is_tiny ? static_cast<Bits32>(static_cast<std::int32_t>(tiny)) : usual;
      magnitude = magnitude < least ? least : magnitude > kLargest ? kLargest : magnitude;
      code[i] = static_cast<Bits8>((magnitude | (kSquare ? 0 : (bits >> 24) & 0x80u)) & kept);
    }
    return static_cast<Bits8>(most >= 0x7f800000u ? 0xff : scale);
  }
};

template <bool kSquare>
[[gnu::noinline]] void decode8(const Bits8* code, Bits8 scale, float* out, Index elements) {
  Block8<kSquare>::decode(code, scale, out, elements);
}
template <bool kSquare>
[[gnu::noinline]] Bits8 encode8(const float* value, Bits8* code, Index elements,
                                const Bits32* random_of, int shift) {
  return Block8<kSquare>::encode(value, code, elements, random_of, shift);
}

template <class Rule>
constexpr bool kIsSquare[2] = {false, false};
template <>
constexpr bool kIsSquare<Adam>[2] = {false, true};
template <>
constexpr bool kIsSquare<Adagrad>[2] = {true, false};

// Decoded and encoded in memory that stays in the first-level cache.
template <class Rule, class Master, class Gradient>
void update_block8(const Master master, const Gradient gradient, const UpdateSpan& span,
                   const UpdateStep& step) {
  alignas(64) float moment[2][kScaleBlock];
  alignas(64) Bits32 random[kScaleBlock];
  auto* const first = static_cast<Bits8*>(span.moment[0]);
  auto* const second = static_cast<Bits8*>(span.moment[1]);
  for (Index at = 0; at < span.elements; at += kScaleBlock) {
    const Index count = span.elements - at < kScaleBlock ? span.elements - at : kScaleBlock;
    const Index element = span.first_element + at, block = at / kScaleBlock;
    const RandomKeys keys = random_keys(step.random_key, element);
    const auto in_block = static_cast<Bits32>(element % kRandomBlock);
    for (Index i = 0; i < kScaleBlock; ++i)
      random[i] = random_bits(keys, in_block + static_cast<Bits32>(i));
    decode8<kIsSquare<Rule>[0]>(first + at, span.moment_scale[0][block], moment[0], count);
    if (Rule::kMoments > 1)
      decode8<kIsSquare<Rule>[1]>(second + at, span.moment_scale[1][block], moment[1], count);
    update<Rule>(master.from(at), gradient.from(at), F32Moments{moment[0], moment[1]}, count, step);
    span.moment_scale[0][block] =
        encode8<kIsSquare<Rule>[0]>(moment[0], first + at, count, random, 0);
    if (Rule::kMoments > 1) {
      span.moment_scale[1][block] =
          encode8<kIsSquare<Rule>[1]>(moment[1], second + at, count, random, 16);
    }
  }
}

// One call per random block that the span touches.
template <class Rule, class Master, class Gradient>
void update_bf16(const Master master, const Gradient gradient, const UpdateSpan& span,
                 const UpdateStep& step) {
  for (Index at = 0; at < span.elements;) {
    const Index element = span.first_element + at;
    const Index left_in_block = kRandomBlock - element % kRandomBlock;
    const Index left = span.elements - at;
    const Index count = left < left_in_block ? left : left_in_block;
    auto* const first = static_cast<Bits16*>(span.moment[0]) + at;
    auto* const second = Rule::kMoments > 1 ? static_cast<Bits16*>(span.moment[1]) + at : nullptr;
    update<Rule>(master.from(at), gradient.from(at),
                 Bf16Moments{first, second, random_keys(step.random_key, element),
                             static_cast<Bits32>(element % kRandomBlock)},
                 count, step);
    at += count;
  }
}

// ---- which of them ----

template <class Rule, class Master, class Gradient>
void update_with(const Master master, const Gradient gradient, const UpdateSpan& span,
                 const UpdateStep& step) {
  if constexpr (Rule::kMoments == 0) {
    update<Rule>(master, gradient, NoMoments{}, span.elements, step);
  } else if (span.codec == MomentCodec::kBf16) {
    update_bf16<Rule>(master, gradient, span, step);
  } else if (span.codec == MomentCodec::kBlock8) {
    update_block8<Rule>(master, gradient, span, step);
  } else {
    update<Rule>(
        master, gradient,
        F32Moments{static_cast<float*>(span.moment[0]), static_cast<float*>(span.moment[1])},
        span.elements, step);
  }
}

template <class Master, class Gradient>
void update_by_rule(const Master master, const Gradient gradient, const UpdateSpan& span,
                    const UpdateStep& step) {
  switch (step.arithmetic) {
    case Arithmetic::kAdam:
      return update_with<Adam>(master, gradient, span, step);
    case Arithmetic::kAdagrad:
      return update_with<Adagrad>(master, gradient, span, step);
    case Arithmetic::kLion:
      return update_with<Lion>(master, gradient, span, step);
    case Arithmetic::kMomentum:
      return update_with<Momentum>(master, gradient, span, step);
    case Arithmetic::kPlain:
      return update_with<Plain>(master, gradient, span, step);
  }
}

template <class Master>
void update_by_gradient(const Master master, const UpdateSpan& span, const UpdateStep& step) {
  switch (span.gradient_dtype) {
    case DType::kF32:
      return update_by_rule(master, F32Gradient{static_cast<const float*>(span.gradient)}, span,
                            step);
    case DType::kBf16:
      return update_by_rule(master, Bf16Gradient{static_cast<const Bits16*>(span.gradient)}, span,
                            step);
    case DType::kF16:
      return update_by_rule(master, F16Gradient{static_cast<const Bits16*>(span.gradient)}, span,
                            step);
  }
}

inline void update_span(const UpdateSpan& span, const UpdateStep& step) {
  const base::DefaultFloatMode mode;
  auto* const weight16 = static_cast<Bits16*>(span.weight);
  auto* const master32 = static_cast<float*>(span.master);
  switch (span.kind) {
    case MasterKind::kSplitResidual:
      return update_by_gradient(SplitMaster{weight16, static_cast<Bits16*>(span.master)}, span,
                                step);
    case MasterKind::kF32:
      return update_by_gradient(F32Master{weight16, master32}, span, step);
    case MasterKind::kF32OfF16:
      return update_by_gradient(F16Master{weight16, master32}, span, step);
    case MasterKind::kWeightItself:
      return update_by_gradient(WeightItself{static_cast<float*>(span.weight)}, span, step);
  }
}
}  // namespace
}  // namespace headrace::optimizer_cpu
