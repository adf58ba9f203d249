// SPDX-License-Identifier: Apache-2.0
// update.hpp: an optimizer's update of a span of elements, the same bits on every instruction set.
//
// kernels/update_element.hpp defines the result, one element at a time; every kernel gives its bits
// (0 ulp). All operations are single IEEE operations in a fixed order: fused multiply-adds are
// explicit, and nothing is reassociated. Denormals are kept whatever the caller's MXCSR: each call
// sets it, and restores it on return. NaN results are canonical.
#pragma once
#include <cstdint>

#include "headrace/optimizer.hpp"
#include "kernels/kernels.hpp"
#include "kernels/random_bits.hpp"

namespace headrace::optimizer_cpu {
using base::kBlockElements;
using base::kScaleElements;
using kernels::Arithmetic;
using kernels::choose_instruction_set;
using kernels::has_scales;
using kernels::is_square;
using kernels::kLoadKey;
using kernels::kMaxMoments;
using kernels::master_bytes;
using kernels::MasterKind;
using kernels::moment_bytes;
using kernels::moments;
using kernels::part_of;
using kernels::random_bits;
using kernels::random_key;
using kernels::random_keys;
using kernels::runs_here;
using kernels::update_reference;
using kernels::UpdateFunction;
using kernels::UpdateSpan;
using kernels::UpdateStep;
using kernels::weight_bytes;

// `t` counts this parameter's updates, including this one.
UpdateStep make_update_step(OptimizerRule rule, const Hyperparameters& values, double learning_rate,
                            std::uint64_t t, double gradient_factor);
constexpr Arithmetic arithmetic_of(OptimizerRule rule) {
  constexpr Arithmetic kOf[] = {Arithmetic::kAdam, Arithmetic::kAdam,  Arithmetic::kAdagrad,
                                Arithmetic::kLion, Arithmetic::kPlain, Arithmetic::kMomentum};
  return kOf[static_cast<std::uint8_t>(rule)];
}

inline UpdateFunction update_function(Simd set) noexcept { return kernels::kernels_of(set).update; }
}  // namespace headrace::optimizer_cpu
