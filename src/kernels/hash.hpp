// SPDX-License-Identifier: Apache-2.0
// hash.hpp: XXH3, the one checksum: of swap records (64 bit, seeded) and of logical content
// (128 bit, streamed).
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
  // What was hashed so far, for another process with the same library to go on from.
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
  std::string hex() const;  // 32 digits, canonical (big-endian) order as xxhsum -H2 prints

 private:
  struct Xxh;
  std::unique_ptr<Xxh> xxh_;
};
}  // namespace headrace::kernels
