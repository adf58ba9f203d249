// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/verified_files.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error_text.hpp"
#include "checkpoint/chunk_sums.hpp"

namespace headrace::checkpoint {
namespace {
std::size_t lane_of(const PlacedTensor& tensor) {
  return tensor.kept ? static_cast<std::size_t>(*tensor.kept) : 0;
}
}  // namespace

std::string length_fault(const File& file, const PlacedFile& placed) {
  const std::uint64_t size = file.size_bytes();
  if (size == placed.size_bytes) return {};
  return placed.name + " has " + std::to_string(size) + " bytes, not the " +
         std::to_string(placed.size_bytes) + " of its tensors";
}

std::string header_fault(const File& file, const PlacedFile& placed, const SavedFile& saved) {
  std::string header(placed.header.size(), '\0');
  file.read(std::as_writable_bytes(std::span(header)), 0);
  if (checksum_of(header) != saved.header_checksum)
    return "the checksum of the header of " + placed.name + " differs";
  if (header == placed.header) return {};
  return "the header of " + placed.name + " has other tensors or places than manifest.json";
}

bool read_chunk(const File& file, const PlacedTensor& placed, const SavedTensor& saved,
                std::uint64_t chunk, std::span<std::byte> bytes) {
  file.read(bytes, placed.at + chunk * kChunkBytes);
  return checksum_of(std::span<const std::byte>(bytes)) == saved.checksums[chunk];
}

VerifiedFiles::VerifiedFiles(std::string directory, Manifest manifest)
    : directory_(std::move(directory)),
      manifest_(std::move(manifest)),
      layout_(layout_of(manifest_, directory_)) {
  for (std::uint32_t f = 0; f < layout_.files.size(); ++f) {
    const PlacedFile& placed = layout_.files[f];
    files_.push_back(File::open(directory_ + "/" + placed.name));
    std::string fault = length_fault(files_.back(), placed);
    if (fault.empty()) fault = header_fault(files_.back(), placed, saved_file(manifest_, f));
    if (!fault.empty()) refuse_damaged(directory_, fault);
  }
  next_.assign(layout_.tensors.size(), ChunkId::kNone);
  std::array<std::uint32_t, ReadAhead::kLanes> following;
  following.fill(ChunkId::kNone);
  for (std::uint32_t t = static_cast<std::uint32_t>(next_.size()); t-- > 0;) {
    if (!layout_.tensors[t].kept) continue;
    next_[t] = std::exchange(following[lane_of(layout_.tensors[t])], t);
  }
  ahead_ = std::make_unique<ReadAhead>(
      [this](ChunkId id, std::byte* memory) { return read_verified(id, memory); },
      [this](ChunkId id) { return after(id); });
}

std::vector<std::byte> VerifiedFiles::trainer_state() const {
  if (!manifest_.trainer_state) return {};
  const auto& [size_bytes, checksum] = *manifest_.trainer_state;
  const File file = File::open(directory_ + "/" + kTrainerStateName);
  if (file.size_bytes() != size_bytes)
    refuse_damaged(directory_, std::string(kTrainerStateName) + " has another length");
  std::vector<std::byte> bytes(size_bytes);
  file.read(bytes, 0);
  if (checksum_of(std::span<const std::byte>(bytes)) != checksum)
    refuse_damaged(directory_, std::string("the checksum of ") + kTrainerStateName + " differs");
  return bytes;
}

std::span<const std::byte> VerifiedFiles::chunk_of(std::uint32_t tensor, std::uint64_t chunk) {
  return ahead_->get(lane_of(layout_.tensors[tensor]), {tensor, chunk});
}

// On a thread of the read-ahead.
std::span<const std::byte> VerifiedFiles::read_verified(ChunkId id, std::byte* memory) {
  const PlacedTensor& placed = layout_.tensors[id.tensor];
  const SavedTensor& saved = saved_tensor(manifest_, layout_, id.tensor);
  const auto bytes = files_[placed.file].read_around_cache(
      placed.at + id.chunk * kChunkBytes, chunk_bytes_of(placed.size_bytes, id.chunk), memory);
  if (checksum_of(bytes) == saved.checksums[id.chunk]) return bytes;
  refuse_damaged(directory_, "the checksum of " + base::quoted_name(saved.name) +
                                 " differs in chunk " + std::to_string(id.chunk));
}

ChunkId VerifiedFiles::after(ChunkId id) const {
  if (id.chunk + 1 < chunks_of(layout_.tensors[id.tensor].size_bytes))
    return {id.tensor, id.chunk + 1};
  return {next_[id.tensor], 0};
}

void VerifiedFiles::verify(std::uint32_t tensor) {
  for (std::uint64_t c = 0; c < chunks_of(layout_.tensors[tensor].size_bytes); ++c)
    (void)chunk_of(tensor, c);
}

void VerifiedFiles::read(std::uint32_t tensor, std::uint64_t at, std::span<std::byte> out) {
  while (!out.empty()) {
    const std::uint64_t chunk = at / kChunkBytes, first = at % kChunkBytes;
    const std::span<const std::byte> from = chunk_of(tensor, chunk).subspan(first);
    const std::size_t count = std::min(out.size(), from.size());
    std::copy_n(from.begin(), count, out.begin());
    out = out.subspan(count);
    at += count;
  }
}
}  // namespace headrace::checkpoint
