// SPDX-License-Identifier: Apache-2.0
// gradient_pass.hpp: the pass over an arriving gradient: cast, accumulate, sum of squares,
// non-finite count.
//
// The sum of squares of a piece is taken in double in 16 lanes: lane j holds elements i with i % 16
// == j (counted from the piece's start) in rising order, each added as one multiply and one add;
// then lanes 0..7 += 8..15, 0..3 += 4..7, 0..1 += 2..3, 0 += 1. The same on every instruction set.
#pragma once
#include <span>

#include "headrace/device.hpp"

namespace headrace::kernels {
// Does Accumulation's work on the calling thread (headrace/device.hpp). Without a `sum` the source
// is measured as it is, and nothing is stored; that may be fp16 too.
void accumulate_on_host(const Accumulation& work) noexcept;

// Adds neighbours, then neighbours of those: the same tree for the same number of pieces.
double tree_sum(std::span<const GradientPiece> pieces) noexcept;
}  // namespace headrace::kernels
