// SPDX-License-Identifier: Apache-2.0
// cuda_kernel_bodies.hpp: the arithmetic of the GPU's kernels, element by element: compiled by nvcc
// for the GPU (cuda_kernels.cu) and by the host's compiler for tests, which compare its bits with
// gradient_kernels_loops.hpp's.
//
// Built without contraction and flushing (cmake/headrace_cuda.cmake), so that each line here is one
// IEEE operation on either side.
#pragma once
#include <cstdint>

#include "base/both_sides.hpp"

// For the GPU alone: several loads, or products, at once.
#ifdef __CUDA_ARCH__
#define HEADRACE_UNROLLED _Pragma("unroll 8")
#else
#define HEADRACE_UNROLLED
#endif

namespace headrace::device::cuda {
struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

HEADRACE_BOTH float as_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
HEADRACE_BOTH std::uint32_t as_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

HEADRACE_BOTH float widen(float value) { return value; }
HEADRACE_BOTH float widen(Bfloat value) { return as_float(std::uint32_t{value.bits} << 16); }
HEADRACE_BOTH float widen(Half value) {
  const std::uint32_t magnitude = std::uint32_t{value.bits} & 0x7fffu;
  const std::uint32_t moved = magnitude << 13;
  std::uint32_t bits = moved + 0x38000000u;
  if (magnitude >= 0x7c00u) bits = moved + 0x70000000u;
  if (magnitude < 0x0400u) bits = as_bits(as_float(moved + 0x38800000u) - 0x1p-14f);
  return as_float(bits | (std::uint32_t{value.bits} & 0x8000u) << 16);
}

// A NaN becomes the canonical one; all else is rounded to nearest, ties to even.
HEADRACE_BOTH std::uint32_t canonical_bits(float value) {
  return value != value ? 0x7fc00000u : as_bits(value);
}
HEADRACE_BOTH void round_to(float& out, float value) { out = as_float(canonical_bits(value)); }
HEADRACE_BOTH void round_to(Bfloat& out, float value) {
  const std::uint32_t bits = canonical_bits(value);
  out.bits = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
HEADRACE_BOTH void round_to(Half& out, float value) {
  const std::uint32_t bits = canonical_bits(value), magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude < 0x38800000u) {  // in multiples of 2^-24
    half = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    half = half < 0x7c00u ? half : 0x7c00u;
  }
  out.bits = static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000u));
}

// ---- casts and sums: one element ----

template <class Source, class Sum>
HEADRACE_BOTH void write_element(const Source* source, Sum* sum, std::uint64_t i) {
  round_to(sum[i], widen(source[i]));
}
template <class Source, class Sum>
HEADRACE_BOTH void add_element(const Source* source, Sum* sum, std::uint64_t i) {
  round_to(sum[i], widen(sum[i]) + widen(source[i]));
}

// ---- sum of squares and count of non-finite values: one piece, in strips ----
// The order is gradient_kernels.hpp's: lane j adds elements j, j + 16, ... of the piece in double;
// then the lanes are folded. Threads bring a strip into fast memory, sixteen of them add it up.

inline constexpr std::uint32_t kLanes = 16;
inline constexpr std::uint32_t kStrip = 2048;  // elements; a multiple of kLanes

struct Lane {  // in a GPU's shared memory too, which takes no initial values
  double sum;
  std::uint64_t non_finite;
};

// Elements [first, first + elements) of the piece, elements <= kStrip, by thread `thread` of
// `threads`.
template <class Value>
HEADRACE_BOTH void load_strip(const Value* piece, std::uint64_t first, std::uint32_t elements,
                              float* strip, std::uint32_t thread, std::uint32_t threads) {
  HEADRACE_UNROLLED
  for (std::uint32_t i = thread; i < elements; i += threads) strip[i] = widen(piece[first + i]);
}
// One product and one sum an element: the product of two floats is exact in double.
HEADRACE_BOTH void add_strip(const float* strip, std::uint32_t elements, std::uint32_t lane,
                             Lane& to) {
  HEADRACE_UNROLLED
  for (std::uint32_t i = lane; i < elements; i += kLanes) {
    const double value = strip[i];
    to.sum += value * value;
    to.non_finite += (as_bits(strip[i]) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
  }
}
// lanes[0] becomes the piece's.
HEADRACE_BOTH void join_lanes(Lane* lanes) {
  for (std::uint32_t half = kLanes / 2; half != 0; half /= 2) {
    for (std::uint32_t j = 0; j < half; ++j) {
      lanes[j].sum += lanes[j + half].sum;
      lanes[j].non_finite += lanes[j + half].non_finite;
    }
  }
  // The canonical NaN, whichever came out.
  if (lanes[0].sum != lanes[0].sum)
    lanes[0].sum = __builtin_bit_cast(double, std::uint64_t{0x7ff8000000000000u});
}
}  // namespace headrace::device::cuda
