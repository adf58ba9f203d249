// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/verified_files.hpp"

#include <algorithm>
#include <utility>

#include "checkpoint/chunk_sums.hpp"

namespace headrace::checkpoint {
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

const VerifiedFiles::Chunk& VerifiedFiles::chunk_of(std::uint32_t tensor, std::uint64_t chunk) {
  const PlacedTensor& placed = layout_.tensors[tensor];
  Chunk& held = chunks_[placed.kept ? static_cast<std::size_t>(*placed.kept) : 0];
  if (held.tensor == tensor && held.chunk == chunk) return held;
  held.tensor = ~0u;
  held.bytes.resize(chunk_bytes_of(placed.size_bytes, chunk));
  const SavedTensor& saved = saved_tensor(manifest_, layout_, tensor);
  if (!read_chunk(files_[placed.file], placed, saved, chunk, held.bytes))
    refuse_damaged(directory_, "the checksum of '" + saved.name + "' differs in chunk " +
                                   std::to_string(chunk));
  held.tensor = tensor;
  held.chunk = chunk;
  return held;
}

void VerifiedFiles::verify(std::uint32_t tensor) {
  for (std::uint64_t c = 0; c < chunks_of(layout_.tensors[tensor].size_bytes); ++c)
    (void)chunk_of(tensor, c);
}

void VerifiedFiles::read(std::uint32_t tensor, std::uint64_t at, std::span<std::byte> out) {
  while (!out.empty()) {
    const std::uint64_t chunk = at / kChunkBytes, first = at % kChunkBytes;
    const std::span<const std::byte> from = std::span(chunk_of(tensor, chunk).bytes).subspan(first);
    const std::size_t count = std::min(out.size(), from.size());
    std::copy_n(from.begin(), count, out.begin());
    out = out.subspan(count);
    at += count;
  }
}
}  // namespace headrace::checkpoint
