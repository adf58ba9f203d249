// SPDX-License-Identifier: Apache-2.0
// tensor_file_writer.hpp: a file that torch.load() reads, written without torch, part by part.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files.hpp"
#include "pickle/zip_writer.hpp"

namespace headrace::tools::pickle {
// Ownership: a new file, complete once finish() has returned.
class TensorFileWriter {
 public:
  //   pickle         of PickleWriter
  //   storage_bytes  the size of each storage that it names, by its number
  TensorFileWriter(const std::string& path, const std::string& pickle,
                   const std::vector<std::uint64_t>& storage_bytes,
                   const checkpoint::Caller& caller);
  // The next bytes of a storage.
  void write(std::size_t storage, std::span<const std::byte> bytes);
  // Once all are written. Syncs the file.
  void finish() { zip_.finish(); }

 private:
  ZipWriter zip_;
};
}  // namespace headrace::tools::pickle
