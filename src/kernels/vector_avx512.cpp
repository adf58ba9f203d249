// SPDX-License-Identifier: Apache-2.0
// vector_avx512.cpp: the kernels in AVX-512 (F, BW, DQ, VL); of update_kernel.hpp the vectors: 16
// lanes.
#include <immintrin.h>

#include <cstdint>

namespace headrace::kernels {
namespace {  // NOLINT(google-build-namespaces): see update_kernel.hpp
constexpr int kLanes = 16;
constexpr int kParts = 2;
constexpr bool kPrefetches = true;

struct Floats {
  __m512 v;
};
struct Words {
  __m512i v;
};
using Mask = __mmask16;
struct FloatPack {
  Floats part[kParts];
};
struct WordPack {
  Words part[kParts];
};

inline Floats all(float value) { return {_mm512_set1_ps(value)}; }
inline Words all(std::uint32_t value) { return {_mm512_set1_epi32(static_cast<int>(value))}; }
inline Words lane_numbers() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
inline Words bits_of(Floats a) { return {_mm512_castps_si512(a.v)}; }
inline Floats float_of(Words a) { return {_mm512_castsi512_ps(a.v)}; }

inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Where a * b is exact: fused or not, whichever costs less.
inline Floats add_exact_product(Floats a, Floats b, Floats c) { return fma(a, b, c); }
inline Floats sqrt(Floats a) { return {_mm512_sqrt_ps(a.v)}; }

inline Words operator+(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Words operator-(Words a, Words b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Words operator*(Words a, Words b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Words operator&(Words a, Words b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Words operator|(Words a, Words b) { return {_mm512_or_si512(a.v, b.v)}; }
inline Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <unsigned kBits>
Words left(Words a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <unsigned kBits>
Words right(Words a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
inline Words least(Words a, Words b) { return {_mm512_min_epu32(a.v, b.v)}; }
inline Words most(Words a, Words b) { return {_mm512_max_epu32(a.v, b.v)}; }
inline std::uint32_t most_of(Words a) {
  alignas(64) std::uint32_t lane[kLanes];
  _mm512_store_si512(lane, a.v);
  std::uint32_t most = 0;
  for (const std::uint32_t bits : lane) most = bits > most ? bits : most;
  return most;
}

inline Mask less(Words a, Words b) { return _mm512_cmplt_epu32_mask(a.v, b.v); }
inline Mask less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Mask is_nan(Floats a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
inline Words choose(Mask mask, Words yes, Words no) {
  return {_mm512_mask_mov_epi32(no.v, mask, yes.v)};
}
inline Floats choose(Mask mask, Floats yes, Floats no) {
  return {_mm512_mask_mov_ps(no.v, mask, yes.v)};
}
inline Words add_where(Mask mask, Words a, Words b) {
  return {_mm512_mask_add_epi32(a.v, mask, a.v, b.v)};
}

inline Floats to_floats(Words a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Words truncated(Floats a) { return {_mm512_cvttps_epi32(a.v)}; }

// ---- packs in memory ----

inline __m512i line_of(const void* data) { return _mm512_loadu_si512(data); }
inline __m256i half_line_of(const void* data) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(data));
}
inline FloatPack load(const float* data) {
  return {{{_mm512_loadu_ps(data)}, {_mm512_loadu_ps(data + kLanes)}}};
}
inline void store(float* data, const FloatPack& pack) {
  _mm512_storeu_ps(data, pack.part[0].v);
  _mm512_storeu_ps(data + kLanes, pack.part[1].v);
}
// One permutation per part puts 16 bits into the upper half of a lane.
inline WordPack load_high(const std::uint16_t* data) {
  constexpr __mmask32 kUpper = 0xaaaaaaaau;
  const __m512i first = _mm512_cvtepu16_epi32(
      _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m512i upper = _mm512_slli_epi32(first, 16);
  const __m512i line = line_of(data);
  return {{{_mm512_maskz_permutexvar_epi16(kUpper, upper, line)},
           {_mm512_maskz_permutexvar_epi16(
               kUpper, _mm512_or_si512(upper, _mm512_set1_epi32(0x00100000)), line)}}};
}
inline WordPack load_signed(const std::uint16_t* data) {
  return {{{_mm512_cvtepi16_epi32(half_line_of(data))},
           {_mm512_cvtepi16_epi32(half_line_of(data + kLanes))}}};
}
inline FloatPack load_f16(const std::uint16_t* data) {
  return {{{_mm512_cvtph_ps(half_line_of(data))}, {_mm512_cvtph_ps(half_line_of(data + kLanes))}}};
}
inline WordPack load_bytes(const std::uint8_t* data) {
  const auto* const from = reinterpret_cast<const __m128i*>(data);
  return {{{_mm512_cvtepu8_epi32(_mm_loadu_si128(from))},
           {_mm512_cvtepu8_epi32(_mm_loadu_si128(from + 1))}}};
}
// 16 bits of each lane, of both parts: those whose numbers begin at `from` (0: lower, 1: upper).
template <int kFrom>
__m512i halves_of(const WordPack& pack) {
  const __m512i twice =
      _mm512_setr_epi32(0x00020000, 0x00060004, 0x000a0008, 0x000e000c, 0x00120010, 0x00160014,
                        0x001a0018, 0x001e001c, 0x00220020, 0x00260024, 0x002a0028, 0x002e002c,
                        0x00320030, 0x00360034, 0x003a0038, 0x003e003c);
  const __m512i places = _mm512_or_si512(twice, _mm512_set1_epi16(kFrom));
  return _mm512_permutex2var_epi16(pack.part[0].v, places, pack.part[1].v);
}
inline void store_high(std::uint16_t* data, const WordPack& pack) {
  _mm512_storeu_si512(data, halves_of<1>(pack));
}
inline void store_low(std::uint16_t* data, const WordPack& pack) {
  _mm512_storeu_si512(data, halves_of<0>(pack));
}
inline void store_f16(std::uint16_t* data, const FloatPack& pack) {
  for (int k = 0; k < kParts; ++k) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data + k * kLanes),
                        _mm512_cvtps_ph(pack.part[k].v, _MM_FROUND_TO_NEAREST_INT));
  }
}
// Past the caches, to a multiple of 64 bytes: what is written without having been read need not be
// read for it. fence() ends them.
constexpr std::uint64_t kStreamAlignment = 64;
inline void stream_high(std::uint16_t* data, const WordPack& pack) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(data), halves_of<1>(pack));
}
inline void stream_f16(std::uint16_t* data, const FloatPack& pack) {
  const __m256i first = _mm512_cvtps_ph(pack.part[0].v, _MM_FROUND_TO_NEAREST_INT);
  const __m256i second = _mm512_cvtps_ph(pack.part[1].v, _MM_FROUND_TO_NEAREST_INT);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(data),
                      _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}
inline void fence() { _mm_sfence(); }
inline void store_bytes(std::uint8_t* data, const WordPack& pack) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(data), _mm512_cvtepi16_epi8(halves_of<0>(pack)));
}
}  // namespace
}  // namespace headrace::kernels

// After the vectors that they are written over.
#include "kernels/gradient_loops.hpp"
#include "kernels/hash_loops.hpp"
#include "kernels/packing_loops.hpp"
#include "kernels/update_kernel.hpp"

const headrace::kernels::Kernels& headrace::kernels::avx512_kernels() noexcept {
  static constexpr Kernels kernels{update_span, accumulate_work, pack_work, unpack_work,
                                   &kHashKernels};
  return kernels;
}
