// SPDX-License-Identifier: Apache-2.0
// masters.hpp: reads and writes the master values of a span as an update stores them.
#pragma once
#include <cstdint>

#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
// Exports the masters of a span as f32. The reverse, for load, joins masters to given weights: a
// split master gets residual 0, an f32 master the weight; an f32 weight is its own master.
void read_master(MasterKind kind, const void* weight, const void* master, std::uint64_t elements,
                 float* out) noexcept;
void reset_master(MasterKind kind, const void* weight, void* master,
                  std::uint64_t elements) noexcept;
// Replaces values of a span, and returns whether a bit changed. For masters, the weights follow as
// an update stores them, so read_master() returns `from` again; NaNs become canonical, unless the
// weight is the master. A weight whose bits change gets its master as in reset_master().
bool replace_masters(MasterKind kind, const float* from, void* weight, void* master,
                     std::uint64_t elements) noexcept;
bool replace_weights(MasterKind kind, const void* from, void* weight, void* master,
                     std::uint64_t elements) noexcept;

// Sets masters from the weights, and moments and their scales to zero. Clears scales to the end of
// the last block, even if the span ends within it.
void reset_state(Arithmetic arithmetic, const UpdateSpan& span) noexcept;
}  // namespace headrace::optimizer_cpu
