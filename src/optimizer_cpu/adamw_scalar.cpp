// SPDX-License-Identifier: Apache-2.0
// adamw_scalar.cpp: the kernel compiled for the plainest CPU the build runs on; without FMA there
// fmaf() is a library call, slow but right.
#include "optimizer_cpu/adamw_kernel.hpp"

void headrace::optimizer_cpu::adamw_scalar(const AdamWSpan& span, const AdamWStep& step) noexcept {
  update_span(span, step);
}
