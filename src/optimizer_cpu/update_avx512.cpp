// SPDX-License-Identifier: Apache-2.0
// update_avx512.cpp: the kernel compiled for AVX-512 (F, BW, DQ, VL): 16 elements at a time.
#include "optimizer_cpu/update_kernel.hpp"

void headrace::optimizer_cpu::update_avx512(const UpdateSpan& span,
                                            const UpdateStep& step) noexcept {
  update_span(span, step);
}
