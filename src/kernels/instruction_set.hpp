// SPDX-License-Identifier: Apache-2.0
// instruction_set.hpp: chooses the kernels for this CPU. Nothing else reads HEADRACE_SIMD.
#pragma once
#include <optional>

#include "headrace/optimizer.hpp"

namespace headrace::kernels {
// No function here accepts or returns kBest.
bool runs_here(Simd set) noexcept;

// The set that HEADRACE_SIMD (scalar, avx2, avx512) requests; no value if it is unset. Throws
// headrace::Error kUnsupported if this CPU lacks the set, kSettings for another word.
std::optional<Simd> forced_instruction_set();
// The requested set, or else the best one that this CPU has.
Simd choose_instruction_set();
// For callers that cannot fail: if HEADRACE_SIMD holds an unknown word or a set that this CPU
// lacks, returns the best set.
Simd usable_instruction_set() noexcept;
}  // namespace headrace::kernels
