// SPDX-License-Identifier: Apache-2.0
// written_files.hpp: the files of a checkpoint while it is written: each tensor's bytes at their
// place, the checksums that follow from them, and the manifest at the end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/write_behind.hpp"

namespace headrace::checkpoint {
class WrittenFiles {
 public:
  // `manifest` with the files that assign_files() gives it; `directory` is named in errors.
  // `buffers`: as WriteBehind's memory.
  WrittenFiles(Manifest manifest, const std::string& directory, const Caller& caller = kSaving,
               std::span<std::byte> buffers = {});

  const Layout& layout() const noexcept { return layout_; }
  // All files in the folder, at their full sizes, with their headers.
  void create(const std::string& folder);
  // Those that another rank has created there.
  void open(const std::string& folder);
  // Bytes of a tensor from `at` on, in rising order. They are copied; sync() or a later call throws
  // what their write throws.
  void write(std::uint32_t tensor, std::uint64_t at, std::span<const std::byte> bytes);
  // The step counts, and the files that say in which file each tensor is.
  void write_steps_and_indexes();
  void sync();
  // By tensor.
  std::vector<ChunkSums>& sums() noexcept { return sums_; }
  const std::string& path(std::uint32_t file) const { return files_[file].path(); }
  // Last, once all checksums are there.
  void write_manifest();

 private:
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }

  Manifest manifest_;
  const Layout layout_;
  const Caller caller_;
  std::string folder_;
  std::vector<File> files_;
  std::vector<ChunkSums> sums_;
  WriteBehind behind_;
};
}  // namespace headrace::checkpoint
