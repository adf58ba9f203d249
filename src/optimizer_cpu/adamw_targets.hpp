// SPDX-License-Identifier: Apache-2.0
// adamw_targets.hpp: one update function per instruction set, and the reference that they all
// equal.
#pragma once
#include "optimizer_cpu/adamw.hpp"

namespace headrace::optimizer_cpu {
void adamw_reference(const AdamWSpan& span, const AdamWStep& step) noexcept;
void adamw_scalar(const AdamWSpan& span, const AdamWStep& step) noexcept;
#if defined(__x86_64__)
void adamw_avx2(const AdamWSpan& span, const AdamWStep& step) noexcept;
void adamw_avx512(const AdamWSpan& span, const AdamWStep& step) noexcept;
#endif
}  // namespace headrace::optimizer_cpu
