// SPDX-License-Identifier: Apache-2.0
// zip_writer.hpp: writes a zip file whose entries are stored as they are, each from a multiple of
// 64 bytes on, as torch.save() does.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files.hpp"

namespace headrace::tools::pickle {
struct ZipPart {
  std::string name;
  std::uint64_t size_bytes = 0;
};

// Ownership: a new file, complete once finish() has returned.
// Threads:   one at a time.
class ZipWriter {
 public:
  // Reserves the space of the whole file. Throws headrace::Error as checkpoint::File does.
  ZipWriter(const std::string& path, const std::vector<ZipPart>& parts,
            const checkpoint::Caller& caller);
  // The next bytes of an entry; each entry's in rising order.
  void write(std::size_t part, std::span<const std::byte> bytes);
  // Once all bytes of all entries are written. Syncs the file.
  void finish();

 private:
  struct Placed {
    std::string name, local_extra;
    std::uint64_t header_at = 0, at = 0, size_bytes = 0, done_bytes = 0;
    std::uint32_t crc = 0;
  };
  static std::vector<Placed> placed(const std::vector<ZipPart>& parts);
  std::string directory() const;
  std::string end_of(std::uint64_t directory_at, std::uint64_t directory_bytes) const;

  std::vector<Placed> parts_;
  checkpoint::File file_;
};
}  // namespace headrace::tools::pickle
