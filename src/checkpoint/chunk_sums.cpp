// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/chunk_sums.hpp"

#include "base/check.hpp"

namespace headrace::checkpoint {
std::string checksum_of(std::span<const std::byte> chunk) {
  kernels::Hash128 hash;
  hash.update(chunk);
  return hash.hex();
}

void ChunkSums::add(std::uint64_t at, std::span<const std::byte> bytes) {
  if (!first_) first_ = at_ = at;
  HEADRACE_CHECK(at == at_, "a rank's part of a tensor is one range, in rising order");
  while (!bytes.empty()) {
    const std::uint64_t chunk = at_ / kChunkBytes;
    const std::uint64_t end = std::min((chunk + 1) * kChunkBytes, size_bytes_);
    const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), end - at_));
    if (at_ == chunk * kChunkBytes) current_ = std::make_unique<kernels::Hash128>();
    if (current_) current_->update(part);
    at_ += part.size();
    bytes = bytes.subspan(part.size());
    if (at_ != end) continue;
    if (current_) checksums_[chunk] = current_->hex();
    current_.reset();
  }
}

std::pair<std::uint64_t, std::uint64_t> ChunkSums::begun() const noexcept {
  return first_ ? std::pair{chunks_of(*first_), chunks_of(at_)}
                : std::pair<std::uint64_t, std::uint64_t>{};
}
}  // namespace headrace::checkpoint
