// SPDX-License-Identifier: Apache-2.0
// verified_files.hpp: reads the tensors of a checkpoint chunk by chunk, and hands out no byte whose
// chunk differs from its checksum.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/manifest.hpp"

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
  // contents.
  void read(std::uint32_t tensor, std::uint64_t at, std::span<std::byte> out);

 private:
  struct Chunk {
    std::uint32_t tensor = ~0u;
    std::uint64_t chunk = 0;
    std::vector<std::byte> bytes;
  };
  const Chunk& chunk_of(std::uint32_t tensor, std::uint64_t chunk);

  const std::string directory_;
  Manifest manifest_;
  const Layout layout_;
  std::vector<File> files_;
  std::array<Chunk, 4> chunks_;  // by content
};
}  // namespace headrace::checkpoint
