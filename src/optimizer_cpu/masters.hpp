// SPDX-License-Identifier: Apache-2.0
// masters.hpp: master values in and out of a span, as an update stores them.
#pragma once
#include <cstdint>

#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
// Master values of a span, f32, for export; and the reverse for load: weights from outside, master
// joined to them (split: residual 0; f32: the weight; weight itself: nothing to do).
void read_master(MasterKind kind, const void* weight, const void* master, std::uint64_t elements,
                 float* out) noexcept;
void reset_master(MasterKind kind, const void* weight, void* master,
                  std::uint64_t elements) noexcept;
// New values of a span, in place of what it has; whether a bit changed. Masters: weights follow as
// an update stores them, so read_master() gives `from` again; a NaN becomes the canonical one
// (weight itself: is kept as it is). Weights: one whose bits are new gets its master as
// reset_master() sets it, every other keeps its master.
bool replace_masters(MasterKind kind, const float* from, void* weight, void* master,
                     std::uint64_t elements) noexcept;
bool replace_weights(MasterKind kind, const void* from, void* weight, void* master,
                     std::uint64_t elements) noexcept;

// Masters from the weights, moments and their scales zero. Scales are cleared to the end of the
// last block, whole or not.
void reset_state(Arithmetic arithmetic, const UpdateSpan& span) noexcept;
}  // namespace headrace::optimizer_cpu
