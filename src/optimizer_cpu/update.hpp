// SPDX-License-Identifier: Apache-2.0
// update.hpp: an optimizer's update of a span of elements, the same bits on every instruction set.
//
// update_reference.cpp defines what is right, one element at a time; every other file gives its
// bits (0 ulp). All operations are single IEEE operations in a fixed order: fused multiply-adds are
// written as such, nothing is reassociated. Denormals are kept whatever the caller's MXCSR: the
// entry sets it and puts it back. NaN results are canonical.
#pragma once
#include <cstdint>

#include "base/random_bits.hpp"
#include "device/update_span.hpp"
#include "headrace/optimizer.hpp"
#include "optimizer_cpu/instruction_set.hpp"

namespace headrace::optimizer_cpu {
using base::kLoadKey;
using base::kRandomBlock;
using base::random_bits;
using base::random_key;
using base::random_keys;
using base::RandomKeys;
using device::Arithmetic;
using device::is_square;
using device::kMaxMoments;
using device::kScaleBlock;
using device::master_bytes;
using device::MasterKind;
using device::moment_bytes;
using device::moments;
using device::UpdateSpan;
using device::UpdateStep;
using device::weight_bytes;

// `t` counts this parameter's updates, this one included.
UpdateStep make_update_step(OptimizerRule rule, const Hyperparameters& values, double learning_rate,
                            std::uint64_t t, double gradient_factor);
constexpr Arithmetic arithmetic_of(OptimizerRule rule) {
  constexpr Arithmetic kOf[] = {Arithmetic::kAdam, Arithmetic::kAdam,  Arithmetic::kAdagrad,
                                Arithmetic::kLion, Arithmetic::kPlain, Arithmetic::kMomentum};
  return kOf[static_cast<std::uint8_t>(rule)];
}

using UpdateFunction = void (*)(const UpdateSpan& span, const UpdateStep& step) noexcept;
UpdateFunction update_function(InstructionSet set) noexcept;
}  // namespace headrace::optimizer_cpu
