// SPDX-License-Identifier: Apache-2.0
// chunk_sums.hpp: the checksums of a tensor: an XXH3-128 for each chunk of its bytes.
//
// Chunks have a fixed size, so a checkpoint is the same whatever the number of ranks, and each rank
// can verify what it reads of a tensor without the rest.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/hash.hpp"

namespace headrace::checkpoint {
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
inline constexpr std::size_t kChecksumDigits = 32;

constexpr std::uint64_t chunks_of(std::uint64_t size_bytes) {
  return (size_bytes + kChunkBytes - 1) / kChunkBytes;
}
// Of the chunk of a tensor of this size.
constexpr std::uint64_t chunk_bytes_of(std::uint64_t size_bytes, std::uint64_t chunk) {
  return std::min(kChunkBytes, size_bytes - chunk * kChunkBytes);
}
std::string checksum_of(std::span<const std::byte> chunk);

// Of one tensor, while its bytes pass by in rising order: all of them, or the part of one rank.
class ChunkSums {
 public:
  explicit ChunkSums(std::uint64_t size_bytes)
      : size_bytes_(size_bytes), checksums_(chunks_of(size_bytes)) {}

  void add(std::uint64_t at, std::span<const std::byte> bytes);
  // By chunk; empty where this rank's part does not have all of it.
  std::vector<std::string>& checksums() noexcept { return checksums_; }
  // The chunks [first, second) that begin in this rank's part.
  std::pair<std::uint64_t, std::uint64_t> begun() const noexcept;

 private:
  std::uint64_t size_bytes_;
  std::vector<std::string> checksums_;
  std::optional<std::uint64_t> first_;         // the first byte
  std::uint64_t at_ = 0;                       // the next byte
  std::unique_ptr<kernels::Hash128> current_;  // of a chunk that began in this part, up to at_
};
}  // namespace headrace::checkpoint
