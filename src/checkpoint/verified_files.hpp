// SPDX-License-Identifier: Apache-2.0
// verified_files.hpp: reads the tensors of a checkpoint chunk by chunk, and hands out no byte whose
// chunk differs from its checksum.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/read_ahead.hpp"

namespace headrace::checkpoint {
// What differs from what was saved; "" if nothing does.
std::string length_fault(const File& file, const PlacedFile& placed);
std::string header_fault(const File& file, const PlacedFile& placed, const SavedFile& saved);
// Reads a chunk of a tensor into `bytes`, of its size. Whether it has its checksum.
bool read_chunk(const File& file, const PlacedTensor& placed, const SavedTensor& saved,
                std::uint64_t chunk, std::span<std::byte> bytes);

class VerifiedFiles {
 public:
  // Reads and compares all headers. Throws kCorrupt naming what differs.
  VerifiedFiles(std::string directory, Manifest manifest);

  const Manifest& manifest() const noexcept { return manifest_; }
  const Layout& layout() const noexcept { return layout_; }
  // Empty if none was saved.
  std::vector<std::byte> trainer_state() const;

  // These throw kCorrupt naming the tensor. verify() reads all of it.
  void verify(std::uint32_t tensor);
  // Bytes from `at` on. Cheap for ranges in rising order, of as many tensors by turns as there are
  // contents: the chunks that follow are read ahead.
  void read(std::uint32_t tensor, std::uint64_t at, std::span<std::byte> out);

 private:
  std::span<const std::byte> chunk_of(std::uint32_t tensor, std::uint64_t chunk);
  std::span<const std::byte> read_verified(ChunkId id, std::byte* memory);
  ChunkId after(ChunkId id) const;

  const std::string directory_;
  Manifest manifest_;
  const Layout layout_;
  std::vector<File> files_;
  std::vector<std::uint32_t> next_;  // by tensor: the next one of its content, if any
  std::unique_ptr<ReadAhead> ahead_;
};
}  // namespace headrace::checkpoint
