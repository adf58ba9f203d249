// SPDX-License-Identifier: Apache-2.0
// update_kernel.hpp: the update of a span, written once over vectors. A file vector_*.cpp defines
// its vectors and then includes this one.
//
// A pack is the unit of loads and stores: kParts vectors. If the length of a span is not a multiple
// of it, the rest is updated in a copy padded with zeros.
//
// Everything has internal linkage, and nothing here uses templates of the standard library.
// Otherwise the linker could keep an inline function compiled for AVX-512 for the whole program
// (tests/kernels/isolation.cmake checks this). The file shares no line with update_element.hpp, but
// gives its bits, which update_test.cpp checks.
#pragma once
#include "kernels/float_mode.hpp"
#include "kernels/kernels.hpp"
#include "kernels/random_bits.hpp"

namespace headrace::kernels {
namespace {  // NOLINT(google-build-namespaces): see above
using Bits8 = std::uint8_t;
using Bits16 = std::uint16_t;
using Bits32 = std::uint32_t;
using Index = std::uint64_t;

constexpr Index kPack = Index{kLanes} * kParts;
// How far ahead the loops request bytes. With the processor's own prefetching alone, a loop with
// five streams and a division waits. Measured from 64 to 384 elements, all within 5 %.
constexpr Index kAhead = 96;

template <class T>
void prefetch(const T* data, Index i) {
  if (!kPrefetches) return;
  const char* const at = reinterpret_cast<const char*>(data) + (i + kAhead) * sizeof(T);
  for (Index line = 0; line < kPack * sizeof(T); line += 64) __builtin_prefetch(at + line);
}

inline bool can_stream(const void* data) {
  return __builtin_bit_cast(std::uintptr_t, data) % kStreamAlignment == 0;
}

inline Floats real(Bits32 bits) { return float_of(all(bits)); }
inline Floats canonical(Floats value) { return choose(is_nan(value), real(0x7fc00000u), value); }
inline FloatPack floats_of(const WordPack& words) {
  FloatPack floats;
  for (int k = 0; k < kParts; ++k) floats.part[k] = float_of(words.part[k]);
  return floats;
}

// ---- loading gradients; `from` begins at a later element ----

struct F32Gradient {
  const float* __restrict data;
  F32Gradient from(Index i) const { return {data + i}; }
  FloatPack load_at(Index i) const {
    prefetch(data, i);
    return load(data + i);
  }
};
struct Bf16Gradient {
  const Bits16* __restrict data;
  Bf16Gradient from(Index i) const { return {data + i}; }
  FloatPack load_at(Index i) const {
    prefetch(data, i);
    return floats_of(load_high(data + i));
  }
};
struct F16Gradient {
  const Bits16* __restrict data;
  F16Gradient from(Index i) const { return {data + i}; }
  FloatPack load_at(Index i) const {
    prefetch(data, i);
    return load_f16(data + i);
  }
};

// ---- masters: loaded, and rounded and split when stored; p is canonical ----

struct SplitResidual {
  Bits16* __restrict weight;
  Bits16* __restrict residual;
  SplitResidual from(Index i) const { return {weight + i, residual + i}; }
  FloatPack load_at(Index i) const {
    prefetch(weight, i);
    prefetch(residual, i);
    WordPack sum = load_high(weight + i);
    const WordPack below = load_signed(residual + i);
    for (int k = 0; k < kParts; ++k) sum.part[k] = sum.part[k] + below.part[k];
    return floats_of(sum);
  }
  void store_at(Index i, const FloatPack& p) const {
    WordPack bits, rounded;
    for (int k = 0; k < kParts; ++k) {
      bits.part[k] = bits_of(p.part[k]);
      rounded.part[k] = bits.part[k] + all(0x8000u);
    }
    store_high(weight + i, rounded);
    store_low(residual + i, bits);  // bits - (weight << 16), of which the low 16 bits are kept
  }
};
struct F32Master {
  Bits16* __restrict weight;
  float* __restrict master;
  F32Master from(Index i) const { return {weight + i, master + i}; }
  FloatPack load_at(Index i) const {
    prefetch(master, i);
    return load(master + i);
  }
  void store_at(Index i, const FloatPack& p) const {
    WordPack rounded;  // the canonical NaN rounds to the canonical bf16 NaN
    for (int k = 0; k < kParts; ++k) {
      const Words bits = bits_of(p.part[k]);
      rounded.part[k] = bits + all(0x7fffu) + (right<16>(bits) & all(1u));
    }
    if (can_stream(weight + i)) {
      stream_high(weight + i, rounded);
    } else {
      store_high(weight + i, rounded);
    }
    store(master + i, p);
  }
};
struct F16Master {
  Bits16* __restrict weight;
  float* __restrict master;
  F16Master from(Index i) const { return {weight + i, master + i}; }
  FloatPack load_at(Index i) const {
    prefetch(master, i);
    return load(master + i);
  }
  void store_at(Index i, const FloatPack& p) const {
    if (can_stream(weight + i)) {
      stream_f16(weight + i, p);
    } else {
      store_f16(weight + i, p);
    }
    store(master + i, p);
  }
};
struct WeightItself {
  float* __restrict weight;
  WeightItself from(Index i) const { return {weight + i}; }
  FloatPack load_at(Index i) const {
    prefetch(weight, i);
    return load(weight + i);
  }
  void store_at(Index i, const FloatPack& p) const { store(weight + i, p); }
};

// ---- random bits of consecutive elements (random_bits.hpp, in vectors) ----

struct NoRandomBits {
  Words next() { return all(0u); }
};
struct RandomBits {
  Words place, second;
  RandomBits(RandomKeys keys, Bits32 in_block)
      : place(lane_numbers() + all(keys.first + in_block)), second(all(keys.second)) {}
  Words next() {
    Words x = place;
    place = place + all(Bits32{kLanes});
    x = (x ^ right<16>(x)) * all(0x7feb352du);
    x = (x ^ right<15>(x)) + second;
    x = x * all(0x846ca68bu);
    return x ^ right<16>(x);
  }
};
// The 16 bits of one moment.
template <int kMoment>
Words half_of(Words random) {
  return kMoment == 0 ? random & all(0xffffu) : right<16>(random);
}

// ---- storing moments; stored values are canonical ----

struct NoMoments {
  NoRandomBits random() const { return {}; }
  template <int kMoment>
  FloatPack load_at(Index) const {
    return {};
  }
  template <int kMoment>
  void store_at(Index, const FloatPack&, const WordPack&) {}
};
struct F32Moments {
  float* __restrict first;
  float* __restrict second;
  template <int kMoment>
  float* data() const {
    return kMoment == 0 ? first : second;
  }
  NoRandomBits random() const { return {}; }
  template <int kMoment>
  FloatPack load_at(Index i) const {
    prefetch(data<kMoment>(), i);
    return load(data<kMoment>() + i);
  }
  template <int kMoment>
  void store_at(Index i, const FloatPack& values, const WordPack&) const {
    store(data<kMoment>() + i, values);
  }
};
// Stochastic rounding: the dropped 16 bits, as a fraction of a step, are the probability of
// rounding up. Values that would round to infinity are truncated.
struct Bf16Moments {
  Bits16* __restrict first;
  Bits16* __restrict second;
  RandomKeys keys;
  Bits32 in_block;  // for element 0
  template <int kMoment>
  Bits16* data() const {
    return kMoment == 0 ? first : second;
  }
  RandomBits random() const { return {keys, in_block}; }
  template <int kMoment>
  FloatPack load_at(Index i) const {
    prefetch(data<kMoment>(), i);
    return floats_of(load_high(data<kMoment>() + i));
  }
  template <int kMoment>
  void store_at(Index i, const FloatPack& values, const WordPack& random) const {
    WordPack rounded;
    for (int k = 0; k < kParts; ++k) {
      const Words bits = bits_of(values.part[k]);
      const Mask rounds = less(bits & all(0x7fffffffu), all(0x7f7f0000u));
      rounded.part[k] = add_where(rounds, bits, half_of<kMoment>(random.part[k]));
    }
    store_high(data<kMoment>() + i, rounded);
  }
};

// 8-bit codes (update_element.hpp defines them). A sum of squares has no sign and 5 bits of
// exponent; any other moment has a sign and 4.
template <bool kSquare>
struct Codes8 {
  static constexpr Bits32 kBelow = kSquare ? 96 : 112;  // exponent of the least normal number, - 1
  static constexpr float kTiny = kSquare ? 0x1p-33f : 0x1p-17f;  // code 1
  static constexpr float kTinies = kSquare ? 0x1p33f : 0x1p17f;
  static constexpr Bits32 kLargest = kSquare ? 0xff : 0x7f;

  static Floats decode(Words code, Floats factor) {
    const Words magnitude = kSquare ? code : code & all(kLargest);
    const Words tiny = bits_of(to_floats(magnitude) * all(kTiny));
    const Words usual = left<20>(magnitude) + all(kBelow << 23);
    Words value = choose(less(magnitude, all(8u)), tiny, usual);
    if (!kSquare) value = value | left<24>(code & all(0x80u));
    return float_of(value) * factor;
  }
  // `factor`: the inverse of the factor that decode() multiplies by.
  static Words encode(Floats value, Floats factor, Words random) {
    const Words bits = bits_of(value), whole = bits & all(0x7fffffffu);
    const Floats y = float_of(whole) * factor;
    const Words usual = right<20>(bits_of(y) - all(kBelow << 23) + left<4>(random));
    const Words tiny =
        truncated(add_exact_product(to_floats(random), all(0x1p-16f), y * all(kTinies)));
    Words code = choose(less(bits_of(y), all((kBelow + 1) << 23)), tiny, usual);
    if (kSquare) code = most(code, least(whole, all(1u)));  // only 0 becomes 0
    code = least(code, all(kLargest));
    return kSquare ? code : code | (right<24>(bits) & all(0x80u));
  }
};

inline Floats decoding_factor(Bits8 scale) {
  const Bits32 power = scale < 1 ? 1 : scale;  // a scale of 0 is never stored
  return real(scale == 0xff ? 0x7fc00000u : power << 23);
}
template <int kMoment, bool kSquare>
void encode_pack(const float* fresh, Floats factor, const WordPack& random, Bits8* code) {
  const FloatPack values = load(fresh);
  WordPack codes;
  for (int k = 0; k < kParts; ++k) {
    codes.part[k] =
        Codes8<kSquare>::encode(values.part[k], factor, half_of<kMoment>(random.part[k]));
  }
  store_bytes(code, codes);
}

// One block of kScaleElements elements. New values wait in `fresh` until the largest, and so the
// scale, is known.
template <class Rule>
struct Block8Moments {
  const Bits8* code[2];  // not restrict: encode_block() rewrites them
  Floats factor[2];
  float (*fresh)[kScaleElements];
  Words largest[2] = {all(0u), all(0u)};

  NoRandomBits random() const { return {}; }
  template <int kMoment>
  FloatPack load_at(Index i) const {
    prefetch(code[kMoment], i);
    const WordPack codes = load_bytes(code[kMoment] + i);
    FloatPack values;
    for (int k = 0; k < kParts; ++k)
      values.part[k] = Codes8<Rule::kSquare[kMoment]>::decode(codes.part[k], factor[kMoment]);
    return values;
  }
  template <int kMoment>
  void store_at(Index i, const FloatPack& values, const WordPack&) {
    for (int k = 0; k < kParts; ++k)
      largest[kMoment] = most(largest[kMoment], bits_of(values.part[k]) & all(0x7fffffffu));
    store(fresh[kMoment] + i, values);
  }
};

// ---- the rules: see update_element.hpp ----

// Tests the bits: a loop evaluates this in every iteration, so it should be one instruction.
inline bool not_zero(float value) { return (__builtin_bit_cast(Bits32, value) << 1) != 0; }

struct Constants {
  Floats gradient_factor, l2, decay_factor, beta1, one_minus_beta1, beta2, one_minus_beta2,
      minus_step_size, inverse_sqrt_bias2, eps, lookahead;
  bool has_l2, looks_ahead;
  explicit Constants(const UpdateStep& s)
      : gradient_factor(all(s.gradient_factor)),
        l2(all(s.l2)),
        decay_factor(all(s.decay_factor)),
        beta1(all(s.beta1)),
        one_minus_beta1(all(s.one_minus_beta1)),
        beta2(all(s.beta2)),
        one_minus_beta2(all(s.one_minus_beta2)),
        minus_step_size(all(-s.step_size)),
        inverse_sqrt_bias2(all(s.inverse_sqrt_bias2)),
        eps(all(s.eps)),
        lookahead(all(s.lookahead)),
        has_l2(not_zero(s.l2)),
        looks_ahead(not_zero(s.lookahead)) {}
};

struct Adam {
  static constexpr int kMoments = 2;
  static constexpr bool kSquare[2] = {false, true};
  static Floats apply(const Constants& c, Floats g, Floats p, Floats& m, Floats& v) {
    m = fma(c.one_minus_beta1, g, c.beta1 * m);
    v = fma(c.one_minus_beta2 * g, g, c.beta2 * v);
    return fma(c.minus_step_size, m / fma(sqrt(v), c.inverse_sqrt_bias2, c.eps), p);
  }
};
struct Adagrad {
  static constexpr int kMoments = 1;
  static constexpr bool kSquare[2] = {true};
  static Floats apply(const Constants& c, Floats g, Floats p, Floats& sum, Floats&) {
    sum = fma(g, g, sum);
    return fma(c.minus_step_size, g / (sqrt(sum) + c.eps), p);
  }
};
struct Lion {
  static constexpr int kMoments = 1;
  static constexpr bool kSquare[2] = {false};
  static Floats apply(const Constants& c, Floats g, Floats p, Floats& m, Floats&) {
    const Floats mean = fma(c.one_minus_beta1, g, c.beta1 * m), zero = all(0.0f);
    Floats sign = choose(less(mean, zero), all(-1.0f), mean);  // 0 and NaN stay unchanged
    sign = choose(less(zero, mean), all(1.0f), sign);
    m = fma(c.one_minus_beta2, g, c.beta2 * m);
    return fma(c.minus_step_size, sign, p);
  }
};
struct Momentum {
  static constexpr int kMoments = 1;
  static constexpr bool kSquare[2] = {false};
  static Floats apply(const Constants& c, Floats g, Floats p, Floats& m, Floats&) {
    m = fma(c.one_minus_beta1, g, c.beta1 * m);
    return fma(c.minus_step_size, c.looks_ahead ? fma(c.lookahead, m, g) : m, p);
  }
};
struct Plain {
  static constexpr int kMoments = 0;
  static Floats apply(const Constants& c, Floats g, Floats p, Floats&, Floats&) {
    return fma(c.minus_step_size, g, p);
  }
};

template <class Rule, class Master, class Gradient, class Moments>
void update_pack(const Master& master, const Gradient& gradient, Moments& moments, Index i,
                 const Constants& c, auto& random_bits) {
  FloatPack g = gradient.load_at(i), p = master.load_at(i), m{}, v{};
  WordPack random;
  if constexpr (Rule::kMoments > 0) m = moments.template load_at<0>(i);
  if constexpr (Rule::kMoments > 1) v = moments.template load_at<1>(i);
  for (int k = 0; k < kParts; ++k) {
    Floats scaled = g.part[k] * c.gradient_factor;
    if (c.has_l2) scaled = fma(c.l2, p.part[k], scaled);
    p.part[k] = canonical(Rule::apply(c, scaled, p.part[k] * c.decay_factor, m.part[k], v.part[k]));
    m.part[k] = canonical(m.part[k]);
    v.part[k] = canonical(v.part[k]);
    random.part[k] = random_bits.next();
  }
  if constexpr (Rule::kMoments > 0) moments.template store_at<0>(i, m, random);
  if constexpr (Rule::kMoments > 1) moments.template store_at<1>(i, v, random);
  master.store_at(i, p);
}

// `elements` is a multiple of kPack.
template <class Rule, class Master, class Gradient, class Moments>
[[gnu::noinline]] void update(const Master master, const Gradient gradient, Moments moments,
                              Index elements, const UpdateStep& step) noexcept {
  const Constants constants(step);
  auto random_bits = moments.random();
  for (Index i = 0; i < elements; i += kPack)
    update_pack<Rule>(master, gradient, moments, i, constants, random_bits);
}

// Writes the codes and scales of the block that begins at `at`.
template <class Rule>
void encode_block(const Block8Moments<Rule>& moments, const UpdateSpan& span,
                  const UpdateStep& step, Index at) {
  const Index element = span.first_element + at;
  Bits8* code[2] = {};
  Floats factor[2];
  bool damaged[2] = {};
  for (int m = 0; m < Rule::kMoments; ++m) {
    const Bits32 largest = most_of(moments.largest[m]);
    const Bits32 exponent = (largest + 0xfffffu) >> 23;
    const Bits32 scale = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    damaged[m] = largest >= 0x7f800000u;
    span.moment_scale[m][at / kScaleElements] = static_cast<Bits8>(damaged[m] ? 0xff : scale);
    code[m] = static_cast<Bits8*>(span.moment[m]) + at;
    factor[m] = real((254 - scale) << 23);
  }
  RandomBits bits(random_keys(step.random_key, element),
                  static_cast<Bits32>(element % kBlockElements));
  for (Index i = 0; i < kScaleElements; i += kPack) {
    WordPack random;
    for (int k = 0; k < kParts; ++k) random.part[k] = bits.next();
    encode_pack<0, Rule::kSquare[0]>(moments.fresh[0] + i, factor[0], random, code[0] + i);
    if constexpr (Rule::kMoments > 1)
      encode_pack<1, Rule::kSquare[1]>(moments.fresh[1] + i, factor[1], random, code[1] + i);
  }
  for (int m = 0; m < Rule::kMoments; ++m) {
    if (damaged[m]) __builtin_memset(code[m], 0, kScaleElements);  // all of the block is NaN
  }
}

template <class Rule, class Master, class Gradient>
[[gnu::noinline]] void update_block8(const Master master, const Gradient gradient,
                                     const UpdateSpan& span, const UpdateStep& step) noexcept {
  alignas(64) float fresh[2][kScaleElements];
  const Constants constants(step);
  NoRandomBits none;
  for (Index at = 0; at < span.elements; at += kScaleElements) {
    Block8Moments<Rule> moments{};
    moments.fresh = fresh;
    for (int m = 0; m < Rule::kMoments; ++m) {
      moments.code[m] = static_cast<const Bits8*>(span.moment[m]) + at;
      moments.factor[m] = decoding_factor(span.moment_scale[m][at / kScaleElements]);
    }
    const Master master_at = master.from(at);
    const Gradient gradient_at = gradient.from(at);
    for (Index i = 0; i < kScaleElements; i += kPack)
      update_pack<Rule>(master_at, gradient_at, moments, i, constants, none);
    encode_block<Rule>(moments, span, step, at);
  }
}

// ---- choosing among them ----

template <class Rule, class Master, class Gradient>
void update_with(const Master master, const Gradient gradient, const UpdateSpan& span,
                 const UpdateStep& step) {
  switch (span.codec) {
    case MomentCodec::kF32:
      return update<Rule>(
          master, gradient,
          F32Moments{static_cast<float*>(span.moment[0]), static_cast<float*>(span.moment[1])},
          span.elements, step);
    case MomentCodec::kBf16:
      return update<Rule>(
          master, gradient,
          Bf16Moments{static_cast<Bits16*>(span.moment[0]), static_cast<Bits16*>(span.moment[1]),
                      random_keys(step.random_key, span.first_element),
                      static_cast<Bits32>(span.first_element % kBlockElements)},
          span.elements, step);
    case MomentCodec::kBlock8:
      return update_block8<Rule>(master, gradient, span, step);
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
      return update<Plain>(master, gradient, NoMoments{}, span.elements, step);
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
    case DType::kU8:
      return;  // of no gradient: whoever takes gradients refuses it
  }
}

// A span of whole packs within one random block, and of whole scale blocks if there are scales.
inline void update_whole(const UpdateSpan& span, const UpdateStep& step) {
  auto* const weight16 = static_cast<Bits16*>(span.weight);
  auto* const master32 = static_cast<float*>(span.master);
  switch (span.kind) {
    case MasterKind::kSplitResidual:
      return update_by_gradient(SplitResidual{weight16, static_cast<Bits16*>(span.master)}, span,
                                step);
    case MasterKind::kF32:
      return update_by_gradient(F32Master{weight16, master32}, span, step);
    case MasterKind::kF32OfF16:
      return update_by_gradient(F16Master{weight16, master32}, span, step);
    case MasterKind::kWeightItself:
      return update_by_gradient(WeightItself{static_cast<float*>(span.weight)}, span, step);
  }
}

// ---- spans of any length ----

inline Index whole_elements(const UpdateSpan& span) {
  return has_scales(span.codec) ? kScaleElements : kPack;
}

// The rest of a span, in a copy padded with zeros. The padding stays in its own lanes and does not
// change a scale.
[[gnu::noinline]] inline void update_rest(const UpdateSpan& span, const UpdateStep& step) {
  struct Copy {
    alignas(64) Bits8 bytes[kScaleElements * sizeof(float)];
  };
  Copy weight, master, gradient, moment[kMaxMoments];
  const Index whole = whole_elements(span);
  const auto copy = [&](Copy& to, const void* from, Index element_bytes) {
    const Index bytes = span.elements * element_bytes;
    __builtin_memcpy(to.bytes, from, bytes);
    __builtin_memset(to.bytes + bytes, 0, (whole - span.elements) * element_bytes);
  };
  const Index gradient_bytes = span.gradient_dtype == DType::kF32 ? 4 : 2;
  const Index weight_bytes_each = weight_bytes(span.kind);
  const Index master_bytes_each = master_bytes(span.kind);
  const Index moment_bytes_each = moment_bytes(span.codec);
  const int used = static_cast<int>(moments(step.arithmetic));
  copy(weight, span.weight, weight_bytes_each);
  copy(gradient, span.gradient, gradient_bytes);
  if (master_bytes_each > 0) copy(master, span.master, master_bytes_each);
  UpdateSpan padded = span;
  padded.elements = whole;
  padded.weight = weight.bytes;
  padded.master = master.bytes;
  padded.gradient = gradient.bytes;
  for (int m = 0; m < used; ++m) {
    copy(moment[m], span.moment[m], moment_bytes_each);
    padded.moment[m] = moment[m].bytes;
  }
  update_whole(padded, step);
  const Index elements = span.elements;
  __builtin_memcpy(span.weight, weight.bytes, elements * weight_bytes_each);
  if (master_bytes_each > 0)
    __builtin_memcpy(span.master, master.bytes, elements * master_bytes_each);
  for (int m = 0; m < used; ++m)
    __builtin_memcpy(span.moment[m], moment[m].bytes, elements * moment_bytes_each);
}

inline void update_within_block(const UpdateSpan& span, const UpdateStep& step) {
  const Index rest = span.elements % whole_elements(span);
  const Index whole = span.elements - rest;
  if (whole > 0) update_whole(part_of(span, 0, whole), step);
  if (rest > 0) update_rest(part_of(span, whole, rest), step);
}

[[gnu::noinline]] inline void update_in_parts(const UpdateSpan& span, const UpdateStep& step) {
  if (span.codec != MomentCodec::kBf16) return update_within_block(span, step);
  for (Index at = 0; at < span.elements;) {
    const Index left_in_block = kBlockElements - (span.first_element + at) % kBlockElements;
    const Index left = span.elements - at;
    const Index count = left < left_in_block ? left : left_in_block;
    update_within_block(part_of(span, at, count), step);
    at += count;
  }
}

inline void update_span(const UpdateSpan& span, const UpdateStep& step) noexcept {
  const DefaultFloatMode mode;
  update_in_parts(span, step);
  fence();
}
}  // namespace
}  // namespace headrace::kernels
