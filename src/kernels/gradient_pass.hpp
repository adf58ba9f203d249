// SPDX-License-Identifier: Apache-2.0
// gradient_pass.hpp: the pass over an arriving gradient: cast, accumulate, sum of squares,
// non-finite count.
//
// The sum of squares of a piece is computed in double, as 16 partial sums. Sum j adds the squares
// of elements i with i % 16 == j (from the piece's start) in rising order, each with one
// multiplication and one addition; then 0..7 += 8..15, 0..3 += 4..7, 0..1 += 2..3, 0 += 1. Every
// instruction set uses this order.
#pragma once
#include <span>

#include "headrace/device.hpp"

namespace headrace::kernels {
// Does an Accumulation's work (headrace/device.hpp) on the calling thread. Without a `sum`, it only
// measures the source, which may then be fp16 too.
void accumulate_on_host(const Accumulation& work) noexcept;

// Adds neighbours, then neighbours of the sums. The tree depends only on the number of pieces.
double tree_sum(std::span<const GradientPiece> pieces) noexcept;
}  // namespace headrace::kernels
