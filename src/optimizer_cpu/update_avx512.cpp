// SPDX-License-Identifier: Apache-2.0
// update_avx512.cpp: the kernel in AVX-512 (F, BW, DQ, VL).
#include "optimizer_cpu/vector_avx512.hpp"
// After the vectors that it is written over.
#include "optimizer_cpu/update_kernel.hpp"

void headrace::optimizer_cpu::update_avx512(const UpdateSpan& span,
                                            const UpdateStep& step) noexcept {
  update_span(span, step);
}
