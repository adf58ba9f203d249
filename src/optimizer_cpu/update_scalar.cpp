// SPDX-License-Identifier: Apache-2.0
// update_scalar.cpp: the kernel for the plainest CPU the build runs on.
#include "optimizer_cpu/vector_scalar.hpp"
// After the vectors that it is written over.
#include "optimizer_cpu/update_kernel.hpp"

void headrace::optimizer_cpu::update_scalar(const UpdateSpan& span,
                                            const UpdateStep& step) noexcept {
  update_span(span, step);
}
