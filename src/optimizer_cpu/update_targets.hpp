// SPDX-License-Identifier: Apache-2.0
// update_targets.hpp: one update function per instruction set, and the reference that they all
// equal.
#pragma once
#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
void update_reference(const UpdateSpan& span, const UpdateStep& step) noexcept;
void update_scalar(const UpdateSpan& span, const UpdateStep& step) noexcept;
#if defined(__x86_64__)
void update_avx2(const UpdateSpan& span, const UpdateStep& step) noexcept;
void update_avx512(const UpdateSpan& span, const UpdateStep& step) noexcept;
#endif
}  // namespace headrace::optimizer_cpu
