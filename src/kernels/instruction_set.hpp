// SPDX-License-Identifier: Apache-2.0
// instruction_set.hpp: which kernels this CPU runs. Nothing else asks the CPU, or HEADRACE_SIMD.
#pragma once
#include <cstdint>
#include <optional>

namespace headrace::kernels {
enum class InstructionSet : std::uint8_t { kScalar, kAvx2, kAvx512 };
const char* name_of(InstructionSet set) noexcept;
bool runs_here(InstructionSet set) noexcept;

// What HEADRACE_SIMD (scalar, avx2, avx512) asks for; nothing where it is unset. Throws
// headrace::Error kUnsupported when this CPU lacks it, kSettings for another word.
std::optional<InstructionSet> forced_instruction_set();
// That, or the best one this CPU has.
InstructionSet choose_instruction_set();
// The same for who cannot refuse: a word that is no set's, or a set that this CPU lacks, leaves the
// best one.
InstructionSet usable_instruction_set() noexcept;
}  // namespace headrace::kernels
