// SPDX-License-Identifier: Apache-2.0
#include "kernels/hash.hpp"

#include <cstdio>
#include <cstring>
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

struct Hash128::Xxh {
  XXH3_state_t* state = XXH3_createState();
  ~Xxh() { XXH3_freeState(state); }
};

Hash128::Hash128() : xxh_(std::make_unique<Xxh>()) {
  if (xxh_->state == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(xxh_->state);
}
Hash128::~Hash128() = default;

void Hash128::update(std::span<const std::byte> bytes) {
  chosen().update_128(xxh_->state, bytes.data(), bytes.size());
}

// But for the address of the secret, which is each process's own.
Hash128::State Hash128::state() const noexcept {
  static_assert(sizeof(XXH3_state_t) == sizeof(State));
  XXH3_state_t copy = *xxh_->state;
  copy.extSecret = nullptr;
  State state;
  std::memcpy(state.bytes.data(), &copy, sizeof copy);
  return state;
}

void Hash128::set_state(const State& state) noexcept {
  const unsigned char* const secret = xxh_->state->extSecret;
  std::memcpy(xxh_->state, state.bytes.data(), sizeof state);
  xxh_->state->extSecret = secret;
}

std::string Hash128::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(xxh_->state));
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}
}  // namespace headrace::kernels
