// SPDX-License-Identifier: Apache-2.0
// memory_loops.hpp: passes that read and write every byte in place and leave it as it was, compiled
// once per instruction set. Internal linkage, as in every file of that kind.
#pragma once
#include "bench_optimizer/memory_targets.hpp"

namespace headrace::tools {
namespace {  // NOLINT(google-build-namespaces): see above
// The compiler must not know that these change nothing.
volatile std::uint64_t no_bits = 0;
volatile float one = 1;

typedef std::uint64_t __attribute__((may_alias)) Word;
typedef float __attribute__((may_alias)) Number;

void xor_words(std::byte* data, std::uint64_t bytes) noexcept {
  auto* const words = reinterpret_cast<Word*>(data);
  const std::uint64_t key = no_bits, count = bytes / sizeof(Word);
  for (std::uint64_t i = 0; i < count; ++i) words[i] ^= key;
}
// A signalling NaN becomes a quiet one, which changes a bit of a residual or of an 8-bit code.
void multiply(std::byte* data, std::uint64_t bytes) noexcept {
  auto* const numbers = reinterpret_cast<Number*>(data);
  const float factor = one;
  const std::uint64_t count = bytes / sizeof(Number);
  for (std::uint64_t i = 0; i < count; ++i) numbers[i] *= factor;
}

constexpr MemoryLoops kLoops{xor_words, multiply};
}  // namespace
}  // namespace headrace::tools
