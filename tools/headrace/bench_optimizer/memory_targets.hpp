// SPDX-License-Identifier: Apache-2.0
// memory_targets.hpp: the loops of memory_loops.hpp per instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace::tools {
struct MemoryLoops {
  using Pass = void (*)(std::byte* data, std::uint64_t bytes) noexcept;
  Pass xor_words, multiply;  // `bytes`: a multiple of 8
};
const MemoryLoops& memory_loops_baseline() noexcept;
#if defined(__x86_64__)
const MemoryLoops& memory_loops_avx2() noexcept;
const MemoryLoops& memory_loops_avx512() noexcept;
#endif
}  // namespace headrace::tools
