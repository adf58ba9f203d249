// SPDX-License-Identifier: Apache-2.0
// adamw_avx512.cpp: the kernel compiled for AVX-512 (F, BW, DQ, VL): 16 elements at a time.
#include "optimizer_cpu/adamw_kernel.hpp"

void headrace::optimizer_cpu::adamw_avx512(const AdamWSpan& span, const AdamWStep& step) noexcept {
  update_span(span, step);
}
