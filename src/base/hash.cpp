// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>

#include "base/hash_loops.hpp"

namespace headrace::base {
const HashTarget& hash_baseline() noexcept { return kHashTarget; }

const HashTarget& choose_hash_target() noexcept {
#if defined(__x86_64__)
  const char* text = std::getenv("HEADRACE_SIMD");
  const bool scalar = text != nullptr && std::string_view(text) == "scalar";
  if (!scalar && __builtin_cpu_supports("avx2")) return hash_avx2();
#endif
  return hash_baseline();
}

namespace {
const HashTarget& target() noexcept {
  static const HashTarget& chosen = choose_hash_target();
  return chosen;
}
}  // namespace

std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return target().xxh3_64(bytes.data(), bytes.size(), seed);
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
  target().update_128(state_->xxh, bytes.data(), bytes.size());
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
}  // namespace headrace::base
