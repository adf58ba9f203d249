// SPDX-License-Identifier: Apache-2.0
// cuda_kernel_bodies.hpp: the arithmetic of the GPU's kernels, element by element. nvcc compiles it
// for the GPU (cuda_kernels.cu), the host's compiler for tests that compare its bits with
// gradient_loops.hpp's.
//
// Built without contraction and flushing (cmake/headrace_cuda.cmake), so that each line here is one
// IEEE operation on CPU and GPU.
#pragma once
#include <cstdint>

#include "kernels/both_sides.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::device::cuda {
using kernels::as_bits;
using kernels::Bfloat;
using kernels::Half;
using kernels::round_to;
using kernels::widen;

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
// The order is that of gradient_pass.hpp: partial sum j adds elements j, j + 16, ... of the piece
// in double; then the partial sums are folded. Threads load a strip into fast memory, and sixteen
// of them add it, a partial sum each.

inline constexpr std::uint32_t kPartialSums = 16;
inline constexpr std::uint32_t kStrip = 2048;  // elements; a multiple of kPartialSums

struct PartialSum {  // also in a GPU's shared memory, which allows no initial values
  double sum;
  std::uint64_t non_finite;
};

// Thread `thread` of `threads` loads its elements of [first, first + elements), elements <= kStrip.
template <class Value>
HEADRACE_BOTH void load_strip(const Value* piece, std::uint64_t first, std::uint32_t elements,
                              float* strip, std::uint32_t thread, std::uint32_t threads) {
  HEADRACE_UNROLLED
  for (std::uint32_t i = thread; i < elements; i += threads) strip[i] = widen(piece[first + i]);
}
// One product and one sum per element: the product of two floats is exact in double.
HEADRACE_BOTH void add_strip(const float* strip, std::uint32_t elements, std::uint32_t nth,
                             PartialSum& to) {
  HEADRACE_UNROLLED
  for (std::uint32_t i = nth; i < elements; i += kPartialSums) {
    const double value = strip[i];
    to.sum += value * value;
    to.non_finite += (as_bits(strip[i]) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
  }
}
// sums[0] becomes the total of the piece.
HEADRACE_BOTH void join_sums(PartialSum* sums) {
  for (std::uint32_t half = kPartialSums / 2; half != 0; half /= 2) {
    for (std::uint32_t j = 0; j < half; ++j) {
      sums[j].sum += sums[j + half].sum;
      sums[j].non_finite += sums[j + half].non_finite;
    }
  }
  // Any NaN becomes the canonical one.
  if (sums[0].sum != sums[0].sum)
    sums[0].sum = __builtin_bit_cast(double, std::uint64_t{0x7ff8000000000000u});
}
}  // namespace headrace::device::cuda
