// SPDX-License-Identifier: Apache-2.0
#include "kernels/hash.hpp"

#include <cstdio>
#include <new>

#include "kernels/kernels.hpp"
#define XXH_INLINE_ALL  // a state's life alone: what takes time is in hash_loops.hpp
#include <xxhash.h>

namespace headrace::kernels {
namespace {
const HashKernels& chosen() noexcept {
  static const HashKernels& kernels = hash_kernels_of(usable_instruction_set());
  return kernels;
}
}  // namespace

std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return chosen().xxh3_64(bytes.data(), bytes.size(), seed);
}

struct Hash128::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hash128::Hash128() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh);
}
Hash128::~Hash128() = default;

void Hash128::update(std::span<const std::byte> bytes) {
  chosen().update_128(state_->xxh, bytes.data(), bytes.size());
}

std::string Hash128::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->xxh));
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}
}  // namespace headrace::kernels
