// SPDX-License-Identifier: Apache-2.0
// values.hpp: weights, moments and gradients with values as in the middle of a training.
#pragma once
#include <cstddef>
#include <cstdint>

#include "bench_optimizer/cases.hpp"

namespace headrace::tools {
// The first `elements` of `stream`, a multiple of kScaleElements: random numbers of the
// size usual in training, each stream those that fit the others.
void write_values(const Stream& stream, std::uint64_t elements, std::byte* out);
void read_weights(MasterKind kind, const std::byte* weights, std::uint64_t elements, float* out);
}  // namespace headrace::tools
