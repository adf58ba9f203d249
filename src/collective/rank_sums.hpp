// SPDX-License-Identifier: Apache-2.0
// rank_sums.hpp: sums over ranks, in rank order, the same bits wherever they are taken.
#pragma once
#include <cstdint>
#include <span>

#include "headrace/tensor.hpp"

namespace headrace::collective {
// target[i] = parts[0][i] + parts[1][i] + ..., each added in f32 in that order, rounded once to
// `dtype` (nearest, ties to even; NaN canonical). `target` may be one of the parts.
void sum_ranks(std::span<const void* const> parts, DType dtype, std::uint64_t elements,
               void* target) noexcept;
// The same in double.
void sum_ranks(std::span<const double* const> parts, std::uint64_t elements,
               double* target) noexcept;
}  // namespace headrace::collective
