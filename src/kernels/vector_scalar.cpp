// SPDX-License-Identifier: Apache-2.0
// vector_scalar.cpp: the kernels for the plainest CPU the build runs on; of update_kernel.hpp the
// vectors: 1 lane. Without an instruction for it, a fused multiply-add is a library call, slow but
// right.
#include <cstdint>

#include "kernels/number_formats.hpp"

namespace headrace::kernels {
namespace {  // NOLINT(google-build-namespaces): see update_kernel.hpp
constexpr int kLanes = 1;
constexpr int kParts = 1;
constexpr bool kPrefetches = false;

struct Floats {
  float v;
};
struct Words {
  std::uint32_t v;
};
using Mask = bool;
struct FloatPack {
  Floats part[kParts];
};
struct WordPack {
  Words part[kParts];
};

inline Floats all(float value) { return {value}; }
inline Words all(std::uint32_t value) { return {value}; }
inline Words lane_numbers() { return {0}; }
inline Words bits_of(Floats a) { return {__builtin_bit_cast(std::uint32_t, a.v)}; }
inline Floats float_of(Words a) { return {__builtin_bit_cast(float, a.v)}; }

inline Floats operator+(Floats a, Floats b) { return {a.v + b.v}; }
inline Floats operator*(Floats a, Floats b) { return {a.v * b.v}; }
inline Floats operator/(Floats a, Floats b) { return {a.v / b.v}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
// Where a * b is exact: fused or not, whichever costs less.
inline Floats add_exact_product(Floats a, Floats b, Floats c) { return a * b + c; }
inline Floats sqrt(Floats a) { return {__builtin_sqrtf(a.v)}; }

inline Words operator+(Words a, Words b) { return {a.v + b.v}; }
inline Words operator-(Words a, Words b) { return {a.v - b.v}; }
inline Words operator*(Words a, Words b) { return {a.v * b.v}; }
inline Words operator&(Words a, Words b) { return {a.v & b.v}; }
inline Words operator|(Words a, Words b) { return {a.v | b.v}; }
inline Words operator^(Words a, Words b) { return {a.v ^ b.v}; }
template <unsigned kBits>
Words left(Words a) {
  return {a.v << kBits};
}
template <unsigned kBits>
Words right(Words a) {
  return {a.v >> kBits};
}
inline Words least(Words a, Words b) { return a.v < b.v ? a : b; }
inline Words most(Words a, Words b) { return a.v < b.v ? b : a; }
inline std::uint32_t most_of(Words a) { return a.v; }

inline Mask less(Words a, Words b) { return a.v < b.v; }
inline Mask less(Floats a, Floats b) { return a.v < b.v; }
inline Mask is_nan(Floats a) { return a.v != a.v; }
inline Words choose(Mask mask, Words yes, Words no) { return mask ? yes : no; }
inline Floats choose(Mask mask, Floats yes, Floats no) { return mask ? yes : no; }
inline Words add_where(Mask mask, Words a, Words b) { return {mask ? a.v + b.v : a.v}; }

inline Floats to_floats(Words a) { return {static_cast<float>(static_cast<std::int32_t>(a.v))}; }
// 0x80000000 for what no int32_t holds, as the instruction gives it.
inline Words truncated(Floats a) {
  const bool fits = a.v > -0x1p31f && a.v < 0x1p31f;
  return {fits ? static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v)) : 0x80000000u};
}

// ---- packs in memory ----

inline FloatPack load(const float* data) { return {{{*data}}}; }
inline void store(float* data, const FloatPack& pack) { *data = pack.part[0].v; }
inline WordPack load_high(const std::uint16_t* data) {
  return {{{static_cast<std::uint32_t>(*data) << 16}}};
}
inline WordPack load_signed(const std::uint16_t* data) {
  return {{{static_cast<std::uint32_t>(static_cast<std::int16_t>(*data))}}};
}
inline FloatPack load_f16(const std::uint16_t* data) { return {{{f16_to_f32(*data)}}}; }
inline WordPack load_bytes(const std::uint8_t* data) { return {{{*data}}}; }
inline void store_high(std::uint16_t* data, const WordPack& pack) {
  *data = static_cast<std::uint16_t>(pack.part[0].v >> 16);
}
inline void store_low(std::uint16_t* data, const WordPack& pack) {
  *data = static_cast<std::uint16_t>(pack.part[0].v);
}
inline void store_f16(std::uint16_t* data, const FloatPack& pack) {
  *data = canonical_to_f16(pack.part[0].v);
}
// Where other vectors pass the caches.
constexpr std::uint64_t kStreamAlignment = 2;
inline void stream_high(std::uint16_t* data, const WordPack& pack) { store_high(data, pack); }
inline void stream_f16(std::uint16_t* data, const FloatPack& pack) { store_f16(data, pack); }
inline void fence() {}
inline void store_bytes(std::uint8_t* data, const WordPack& pack) {
  *data = static_cast<std::uint8_t>(pack.part[0].v);
}
}  // namespace
}  // namespace headrace::kernels

// After the vectors that they are written over.
#include "kernels/gradient_loops.hpp"
#include "kernels/hash_loops.hpp"
#include "kernels/packing_loops.hpp"
#include "kernels/update_kernel.hpp"

const headrace::kernels::Kernels& headrace::kernels::scalar_kernels() noexcept {
  static constexpr Kernels kernels{update_span, accumulate_work, pack_work, unpack_work,
                                   &kHashKernels};
  return kernels;
}
