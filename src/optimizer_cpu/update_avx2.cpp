// SPDX-License-Identifier: Apache-2.0
// update_avx2.cpp: the kernel in AVX2 with FMA and F16C.
#include "optimizer_cpu/vector_avx2.hpp"
// After the vectors that it is written over.
#include "optimizer_cpu/update_kernel.hpp"

void headrace::optimizer_cpu::update_avx2(const UpdateSpan& span, const UpdateStep& step) noexcept {
  update_span(span, step);
}
