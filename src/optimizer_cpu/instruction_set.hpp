// SPDX-License-Identifier: Apache-2.0
// instruction_set.hpp: which of the update kernels this CPU runs.
#pragma once
#include <cstdint>

namespace headrace::optimizer_cpu {
enum class InstructionSet : std::uint8_t { kScalar, kAvx2, kAvx512 };
const char* name_of(InstructionSet set) noexcept;
bool runs_here(InstructionSet set) noexcept;
// The best one this CPU has; HEADRACE_SIMD (scalar, avx2, avx512) forces another: throws
// headrace::Error kUnsupported when this CPU lacks it, kSettings for another word.
InstructionSet choose_instruction_set();
}  // namespace headrace::optimizer_cpu
