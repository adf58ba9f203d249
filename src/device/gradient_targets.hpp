// SPDX-License-Identifier: Apache-2.0
// gradient_targets.hpp: accumulate_on_host() per instruction set; equal bits, another speed.
#pragma once
#include "headrace/device.hpp"

namespace headrace::device {
void accumulate_baseline(const Accumulation& work) noexcept;
#if defined(__x86_64__)
void accumulate_avx2(const Accumulation& work) noexcept;
void accumulate_avx512(const Accumulation& work) noexcept;
#endif
}  // namespace headrace::device
