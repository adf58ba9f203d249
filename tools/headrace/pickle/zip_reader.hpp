// SPDX-License-Identifier: Apache-2.0
// zip_reader.hpp: reads entries of a zip file that are stored as they are, as torch.save() writes
// them. The file is untrusted: every length and place is checked before it is used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::tools::pickle {
struct ZipEntry {
  std::uint64_t at = 0, size_bytes = 0;  // its data
  std::uint32_t crc = 0;
  std::uint64_t header_at = 0;
};

// Holds the list of entries, and no data.
class ZipReader {
 public:
  // Throws Fault naming the path.
  explicit ZipReader(std::string path);

  const std::string& path() const noexcept { return path_; }
  const std::map<std::string, ZipEntry>& entries() const noexcept { return entries_; }
  // Throws Fault if there is none.
  const ZipEntry& entry(const std::string& name) const;
  // Bytes of the entry from `at` on, which it must have.
  void read(const ZipEntry& entry, std::uint64_t at, std::span<std::byte> out) const;
  // Compares all bytes of the entry with its checksum. Throws Fault.
  void verify(const std::string& name) const;

 private:
  struct Directory {
    std::uint64_t at = 0, size_bytes = 0, entries = 0;
  };
  void read_at(std::uint64_t at, std::span<std::byte> out) const;
  Directory find_directory() const;
  std::uint64_t find_end() const;
  void read_directory(const Directory& directory);
  void place(const std::string& name, ZipEntry& entry, const Directory& directory) const;
  void refuse_overlaps() const;

  std::string path_;
  base::UniqueFd fd_;
  std::uint64_t size_bytes_ = 0;
  std::map<std::string, ZipEntry> entries_;
};
}  // namespace headrace::tools::pickle
