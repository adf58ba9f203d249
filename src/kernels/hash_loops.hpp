// SPDX-License-Identifier: Apache-2.0
// hash_loops.hpp: xxHash's own code, compiled into each file that includes it with that file's
// flags.
#pragma once
// How far ahead, in bytes, the bytes to hash are requested. At xxHash's own distance, 320 to 512,
// too few requests are in flight: from memory a core then hashes 10 GB/s, from 2048 on 20 GB/s.
#define XXH_PREFETCH_DIST 4096
// Makes all of it static, so two files with different flags share no function.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/kernels.hpp"

namespace headrace::kernels {
static std::uint64_t hash_64(const void* data, std::size_t size_bytes,
                             std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}
static void hash_update_128(void* state, const void* data, std::size_t size_bytes) noexcept {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, size_bytes);
}
static constexpr HashKernels kHashKernels{&hash_64, &hash_update_128};
}  // namespace headrace::kernels
