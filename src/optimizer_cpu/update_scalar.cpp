// SPDX-License-Identifier: Apache-2.0
// update_scalar.cpp: the kernel compiled for the plainest CPU the build runs on; without FMA there
// fmaf() is a library call, slow but right.
#include "optimizer_cpu/update_kernel.hpp"

void headrace::optimizer_cpu::update_scalar(const UpdateSpan& span,
                                            const UpdateStep& step) noexcept {
  update_span(span, step);
}
