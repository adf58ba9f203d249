// SPDX-License-Identifier: Apache-2.0
// vector_avx2.cpp: the kernels in AVX2 with FMA and F16C; of update_kernel.hpp the vectors: 8
// lanes.
#include <immintrin.h>

#include <cstdint>

namespace headrace::kernels {
namespace {  // NOLINT(google-build-namespaces): see update_kernel.hpp
constexpr int kLanes = 8;
constexpr int kParts = 2;
constexpr bool kPrefetches = true;

struct Floats {
  __m256 v;
};
struct Words {
  __m256i v;
};
struct Mask {
  __m256i v;  // all bits of a lane, or none
};
struct FloatPack {
  Floats part[kParts];
};
struct WordPack {
  Words part[kParts];
};

inline Floats all(float value) { return {_mm256_set1_ps(value)}; }
inline Words all(std::uint32_t value) { return {_mm256_set1_epi32(static_cast<int>(value))}; }
inline Words lane_numbers() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}; }
inline Words bits_of(Floats a) { return {_mm256_castps_si256(a.v)}; }
inline Floats float_of(Words a) { return {_mm256_castsi256_ps(a.v)}; }

inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// Where a * b is exact: fused or not, whichever costs less.
inline Floats add_exact_product(Floats a, Floats b, Floats c) { return fma(a, b, c); }
inline Floats sqrt(Floats a) { return {_mm256_sqrt_ps(a.v)}; }

inline Words operator+(Words a, Words b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Words operator-(Words a, Words b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline Words operator*(Words a, Words b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
inline Words operator&(Words a, Words b) { return {_mm256_and_si256(a.v, b.v)}; }
inline Words operator|(Words a, Words b) { return {_mm256_or_si256(a.v, b.v)}; }
inline Words operator^(Words a, Words b) { return {_mm256_xor_si256(a.v, b.v)}; }
template <unsigned kBits>
Words left(Words a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
template <unsigned kBits>
Words right(Words a) {
  return {_mm256_srli_epi32(a.v, kBits)};
}
inline Words least(Words a, Words b) { return {_mm256_min_epu32(a.v, b.v)}; }
inline Words most(Words a, Words b) { return {_mm256_max_epu32(a.v, b.v)}; }
inline std::uint32_t most_of(Words a) {
  __m128i left_over = _mm_max_epu32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  left_over = _mm_max_epu32(left_over, _mm_shuffle_epi32(left_over, 0x4e));
  left_over = _mm_max_epu32(left_over, _mm_shuffle_epi32(left_over, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(left_over));
}

// Unsigned: a is less where the greater of both is not a.
inline Mask less(Words a, Words b) {
  const __m256i not_less = _mm256_cmpeq_epi32(_mm256_max_epu32(a.v, b.v), a.v);
  return {_mm256_xor_si256(not_less, _mm256_set1_epi32(-1))};
}
inline Mask less(Floats a, Floats b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
inline Mask is_nan(Floats a) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q))};
}
inline Words choose(Mask mask, Words yes, Words no) {
  return {_mm256_blendv_epi8(no.v, yes.v, mask.v)};
}
inline Floats choose(Mask mask, Floats yes, Floats no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(mask.v))};
}
inline Words add_where(Mask mask, Words a, Words b) {
  return {_mm256_add_epi32(a.v, _mm256_and_si256(mask.v, b.v))};
}

inline Floats to_floats(Words a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline Words truncated(Floats a) { return {_mm256_cvttps_epi32(a.v)}; }

// ---- packs in memory ----

inline __m128i eight(const std::uint16_t* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}
inline FloatPack load(const float* data) {
  return {{{_mm256_loadu_ps(data)}, {_mm256_loadu_ps(data + kLanes)}}};
}
inline void store(float* data, const FloatPack& pack) {
  _mm256_storeu_ps(data, pack.part[0].v);
  _mm256_storeu_ps(data + kLanes, pack.part[1].v);
}
inline WordPack load_high(const std::uint16_t* data) {
  return {{{_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight(data)), 16)},
           {_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight(data + kLanes)), 16)}}};
}
inline WordPack load_signed(const std::uint16_t* data) {
  return {{{_mm256_cvtepi16_epi32(eight(data))}, {_mm256_cvtepi16_epi32(eight(data + kLanes))}}};
}
inline FloatPack load_f16(const std::uint16_t* data) {
  return {{{_mm256_cvtph_ps(eight(data))}, {_mm256_cvtph_ps(eight(data + kLanes))}}};
}
inline WordPack load_bytes(const std::uint8_t* data) {
  return {{{_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(data)))},
           {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + 8)))}}};
}
// Lanes below 65536 of both parts as 16 bits each; the instruction works within halves.
inline __m256i narrowed(__m256i first, __m256i second) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8);
}
inline __m256i upper_halves(const WordPack& pack) {
  return narrowed(right<16>(pack.part[0]).v, right<16>(pack.part[1]).v);
}
inline void store_high(std::uint16_t* data, const WordPack& pack) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(data), upper_halves(pack));
}
inline void store_low(std::uint16_t* data, const WordPack& pack) {
  const __m256i lower = _mm256_set1_epi32(0xffff);
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(data),
      narrowed(_mm256_and_si256(pack.part[0].v, lower), _mm256_and_si256(pack.part[1].v, lower)));
}
inline void store_f16(std::uint16_t* data, const FloatPack& pack) {
  for (int k = 0; k < kParts; ++k) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(data + k * kLanes),
                     _mm256_cvtps_ph(pack.part[k].v, _MM_FROUND_TO_NEAREST_INT));
  }
}
// Past the caches, to a multiple of 32 bytes: what is written without having been read need not be
// read for it. fence() ends them.
constexpr std::uint64_t kStreamAlignment = 32;
inline void stream_high(std::uint16_t* data, const WordPack& pack) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(data), upper_halves(pack));
}
inline void stream_f16(std::uint16_t* data, const FloatPack& pack) {
  for (int k = 0; k < kParts; ++k) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(data + k * kLanes),
                     _mm256_cvtps_ph(pack.part[k].v, _MM_FROUND_TO_NEAREST_INT));
  }
}
inline void fence() { _mm_sfence(); }
inline void store_bytes(std::uint8_t* data, const WordPack& pack) {
  const __m256i halves = narrowed(pack.part[0].v, pack.part[1].v);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(data), bytes);
}
}  // namespace
}  // namespace headrace::kernels

// After the vectors that they are written over.
#include "kernels/gradient_loops.hpp"
#include "kernels/hash_loops.hpp"
#include "kernels/packing_loops.hpp"
#include "kernels/update_kernel.hpp"

const headrace::kernels::Kernels& headrace::kernels::avx2_kernels() noexcept {
  static constexpr Kernels kernels{update_span, accumulate_work, pack_work, unpack_work,
                                   &kHashKernels};
  return kernels;
}
