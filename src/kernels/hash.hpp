// SPDX-License-Identifier: Apache-2.0
// hash.hpp: XXH3, the only hash function: with 64 bits and a seed for swap records, and with 128
// bits, streamed, for logical content.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace headrace::kernels {
std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed);

// Streaming XXH3-128.
class Hash128 {
 public:
  // The state of the hash so far. Another process with the same library can continue from it.
  struct State {
    alignas(8) std::array<std::byte, 576> bytes = {};
  };
  Hash128();
  ~Hash128();
  Hash128(const Hash128&) = delete;
  Hash128& operator=(const Hash128&) = delete;
  void update(std::span<const std::byte> bytes);
  State state() const noexcept;
  void set_state(const State& state) noexcept;
  std::string hex() const;  // 32 digits in canonical (big-endian) order, as xxhsum -H2 prints

 private:
  struct Xxh;
  std::unique_ptr<Xxh> xxh_;
};
}  // namespace headrace::kernels
