// SPDX-License-Identifier: Apache-2.0
// adamw_avx2.cpp: the kernel compiled for AVX2 and FMA: 8 elements at a time.
#include "optimizer_cpu/adamw_kernel.hpp"

void headrace::optimizer_cpu::adamw_avx2(const AdamWSpan& span, const AdamWStep& step) noexcept {
  update_span(span, step);
}
