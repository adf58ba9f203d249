// SPDX-License-Identifier: Apache-2.0
// span_parts.hpp: a part of a span, and what a span's state begins with.
#pragma once
#include <cstdint>

#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
// Elements [first, first + elements) of `whole`, whose arrays may be null. `first` is a multiple of
// kScaleBlock where there are scales.
UpdateSpan part_of(const UpdateSpan& whole, std::uint64_t first, std::uint64_t elements) noexcept;

// Masters from the weights, moments and their scales zero. Scales are cleared to the end of the
// last block, whole or not.
void reset_state(Arithmetic arithmetic, const UpdateSpan& span) noexcept;
}  // namespace headrace::optimizer_cpu
