// SPDX-License-Identifier: Apache-2.0
// gradient_loops.hpp: the pass over an arriving gradient as plain loops, compiled once per
// instruction set.
//
// Everything has internal linkage, and no inline function from elsewhere is used. Otherwise the
// linker could keep a copy compiled for AVX here for the whole program. A strip of 256 elements is
// rounded and stored, then squared from a buffer in the first-level cache. Compilers vectorise
// these two loops well, but not a single loop that does both.
#pragma once
#include <cstdint>

#include "headrace/device.hpp"
#include "kernels/float_mode.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::kernels {
namespace {  // NOLINT(google-build-namespaces): see above
using Index = std::uint64_t;
inline constexpr Index kStrip = 256;
inline constexpr Index kPartialSums = 16;

// Asks for the bytes that a pass reaches 8 KiB after `values`: the hardware's own prefetchers stop
// at each page of 4 KiB. Addresses behind the end are harmless.
template <class Value>
inline void prefetch_after(const Value* values, Index elements) {
  const auto first = reinterpret_cast<std::uintptr_t>(values) + 8192;
  for (Index byte = 0; byte < elements * sizeof(Value); byte += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(first + byte), 0, 2);
}

// sum (+)= source, rounded; `rounded` receives the result as f32.
template <bool kOverwrite, class Source, class Sum>
inline void add_strip(const Source* __restrict source, Sum* __restrict sum,
                      float* __restrict rounded, Index elements) {
  for (Index i = 0; i < elements; ++i) {
    Sum result;
    round_to(result, kOverwrite ? widen(source[i]) : widen(sum[i]) + widen(source[i]));
    sum[i] = result;
    rounded[i] = widen(result);
  }
}

inline void square_rows(const float* __restrict values, Index rows, double* __restrict sums) {
  typedef float Float8 __attribute__((vector_size(32)));
  typedef double Double8 __attribute__((vector_size(64)));
  Double8 low, high;
  __builtin_memcpy(&low, sums, sizeof(low));
  __builtin_memcpy(&high, sums + 8, sizeof(high));
  for (Index row = 0; row < rows; ++row) {
    Float8 a, b;
    __builtin_memcpy(&a, values + row * kPartialSums, sizeof(a));
    __builtin_memcpy(&b, values + row * kPartialSums + 8, sizeof(b));
    const Double8 wide_a = __builtin_convertvector(a, Double8);
    const Double8 wide_b = __builtin_convertvector(b, Double8);
    low += wide_a * wide_a;
    high += wide_b * wide_b;
  }
  __builtin_memcpy(sums, &low, sizeof(low));
  __builtin_memcpy(sums + 8, &high, sizeof(high));
}

inline double join_sums(double* sums) {
  for (Index half = kPartialSums / 2; half != 0; half /= 2) {
    for (Index j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

template <class Sum>
[[gnu::noinline]] std::uint64_t count_non_finite(const Sum* sum, Index elements) noexcept {
  std::uint64_t count = 0;
  for (Index i = 0; i < elements; ++i) {
    count += (as_bits(widen(sum[i])) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
  }
  return count;
}

inline void square_strip(const float* values, Index elements, double* sums) {
  square_rows(values, elements / kPartialSums, sums);
  for (Index i = elements / kPartialSums * kPartialSums; i < elements; ++i)
    sums[i % kPartialSums] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
}

template <class Value>
inline GradientPiece piece_of(double* sums, const Value* values, Index elements) {
  GradientPiece piece;
  piece.sum_squares = join_sums(sums);
  // Squares of finite f32 values cannot overflow a double, so a finite sum is a sum of finite
  // values.
  if (!(piece.sum_squares <= __DBL_MAX__)) piece.non_finite = count_non_finite(values, elements);
  if (piece.sum_squares != piece.sum_squares) piece.sum_squares = __builtin_nan("");
  return piece;
}

template <bool kOverwrite, class Source, class Sum>
[[gnu::noinline]] GradientPiece add_piece(const Source* source, Sum* sum, Index elements) noexcept {
  alignas(64) float rounded[kStrip];
  alignas(64) double sums[kPartialSums] = {};
  for (Index done = 0; done < elements; done += kStrip) {
    const Index strip = elements - done < kStrip ? elements - done : kStrip;
    add_strip<kOverwrite>(source + done, sum + done, rounded, strip);
    square_strip(rounded, strip, sums);
  }
  return piece_of(sums, sum, elements);
}

// The values as f32: where they are, or in `values`.
inline const float* widened(const float* source, Index /*elements*/, float* /*values*/) {
  return source;
}
template <class Source>
inline const float* widened(const Source* source, Index elements, float* values) {
  for (Index i = 0; i < elements; ++i) values[i] = widen(source[i]);
  return values;
}

template <class Source>
[[gnu::noinline]] GradientPiece measure_piece(const Source* source, Index elements) noexcept {
  alignas(64) float values[kStrip];
  alignas(64) double sums[kPartialSums] = {};
  for (Index done = 0; done < elements; done += kStrip) {
    const Index strip = elements - done < kStrip ? elements - done : kStrip;
    prefetch_after(source + done, strip);
    square_strip(widened(source + done, strip, values), strip, sums);
  }
  return piece_of(sums, source, elements);
}

// Calls piece(first, elements) for each piece.
template <class Piece>
inline void for_pieces(const Accumulation& work, const Piece& piece) {
  GradientPiece* out = work.pieces;
  Index size = work.first_piece_elements != 0 ? work.first_piece_elements : work.piece_elements;
  for (Index done = 0; done < work.elements;) {
    const Index left = work.elements - done;
    const Index elements = size == 0 || size > left ? left : size;
    const GradientPiece result = piece(done, elements);
    if (out != nullptr) *out++ = result;
    done += elements;
    size = work.piece_elements;
  }
}

template <class Source, class Sum>
void add_pieces(const Accumulation& work) noexcept {
  const auto* source = static_cast<const Source*>(work.source);
  auto* sum = static_cast<Sum*>(work.sum);
  for_pieces(work, [&](Index first, Index elements) {
    return work.overwrite ? add_piece<true>(source + first, sum + first, elements)
                          : add_piece<false>(source + first, sum + first, elements);
  });
}

template <class Source>
void measure_pieces(const Accumulation& work) noexcept {
  const auto* source = static_cast<const Source*>(work.source);
  for_pieces(work,
             [&](Index first, Index elements) { return measure_piece(source + first, elements); });
}

inline void measure_work(const Accumulation& work) noexcept {
  if (work.source_dtype == DType::kF32) {
    measure_pieces<float>(work);
  } else if (work.source_dtype == DType::kF16) {
    measure_pieces<Half>(work);
  } else {
    measure_pieces<Bfloat>(work);
  }
}

template <class Source>
void add_pieces_of(const Accumulation& work) noexcept {
  if (work.sum_dtype == DType::kF32) return add_pieces<Source, float>(work);
  if (work.sum_dtype == DType::kF16) return add_pieces<Source, Half>(work);
  add_pieces<Source, Bfloat>(work);
}

inline void accumulate_work(const Accumulation& work) noexcept {
  const DefaultFloatMode mode;
  if (work.sum == nullptr) return measure_work(work);
  if (work.source_dtype == DType::kF32) return add_pieces_of<float>(work);
  if (work.source_dtype == DType::kF16) return add_pieces_of<Half>(work);
  add_pieces_of<Bfloat>(work);
}
}  // namespace
}  // namespace headrace::kernels
