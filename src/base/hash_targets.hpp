// SPDX-License-Identifier: Apache-2.0
// hash_targets.hpp: XXH3 per instruction set: equal values, another speed. The distributions'
// libxxhash is built for all CPUs and without inlining, at a third to a quarter of the speed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace::base {
struct HashTarget {
  std::uint64_t (*xxh3_64)(const void* data, std::size_t size_bytes, std::uint64_t seed) noexcept;
  // `state` is an XXH3_state_t, of the same layout in every target.
  void (*update_128)(void* state, const void* data, std::size_t size_bytes) noexcept;
};

const HashTarget& hash_baseline() noexcept;
#if defined(__x86_64__)
const HashTarget& hash_avx2() noexcept;
#endif
// What this CPU runs best; HEADRACE_SIMD=scalar holds it at the baseline.
const HashTarget& choose_hash_target() noexcept;
}  // namespace headrace::base
