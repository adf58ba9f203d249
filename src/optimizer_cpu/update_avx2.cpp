// SPDX-License-Identifier: Apache-2.0
// update_avx2.cpp: the kernel compiled for AVX2 and FMA: 8 elements at a time.
#include "optimizer_cpu/update_kernel.hpp"

void headrace::optimizer_cpu::update_avx2(const UpdateSpan& span, const UpdateStep& step) noexcept {
  update_span(span, step);
}
