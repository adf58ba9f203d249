// SPDX-License-Identifier: Apache-2.0
// instruction_set.hpp: which kernels this CPU runs. Nothing else asks the CPU, or HEADRACE_SIMD.
#pragma once
#include <optional>

#include "headrace/optimizer.hpp"

namespace headrace::kernels {
// No function here takes kBest, or answers it.
bool runs_here(Simd set) noexcept;

// What HEADRACE_SIMD (scalar, avx2, avx512) asks for; nothing where it is unset. Throws
// headrace::Error kUnsupported when this CPU lacks it, kSettings for another word.
std::optional<Simd> forced_instruction_set();
// That, or the best one this CPU has.
Simd choose_instruction_set();
// The same for who cannot refuse: a word that is no set's, or a set that this CPU lacks, leaves the
// best one.
Simd usable_instruction_set() noexcept;
}  // namespace headrace::kernels
