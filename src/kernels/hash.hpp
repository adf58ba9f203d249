// SPDX-License-Identifier: Apache-2.0
// hash.hpp: XXH3, the one checksum: of swap records (64 bit, seeded) and of logical content
// (128 bit, streamed).
#pragma once
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
  Hash128();
  ~Hash128();
  Hash128(const Hash128&) = delete;
  Hash128& operator=(const Hash128&) = delete;
  void update(std::span<const std::byte> bytes);
  std::string hex() const;  // 32 digits, canonical (big-endian) order as xxhsum -H2 prints

 private:
  struct State;
  std::unique_ptr<State> state_;
};
}  // namespace headrace::kernels
