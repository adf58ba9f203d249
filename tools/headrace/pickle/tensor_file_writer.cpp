// SPDX-License-Identifier: Apache-2.0
#include "pickle/tensor_file_writer.hpp"

#include <filesystem>
#include <string_view>

namespace headrace::tools::pickle {
namespace {
constexpr std::string_view kByteOrder = "little", kFormatVersion = "3\n";
constexpr std::size_t kFirstStorage = 3;

std::vector<ZipPart> parts_of(const std::string& path, std::size_t pickle_bytes,
                              const std::vector<std::uint64_t>& storage_bytes) {
  const std::string begin = std::filesystem::path(path).stem().string() + "/";
  std::vector<ZipPart> parts = {{begin + "data.pkl", pickle_bytes},
                                {begin + "byteorder", kByteOrder.size()},
                                {begin + "version", kFormatVersion.size()}};
  for (std::size_t i = 0; i < storage_bytes.size(); ++i)
    parts.push_back({begin + "data/" + std::to_string(i), storage_bytes[i]});
  return parts;
}
}  // namespace

TensorFileWriter::TensorFileWriter(const std::string& path, const std::string& pickle,
                                   const std::vector<std::uint64_t>& storage_bytes,
                                   const checkpoint::Caller& caller)
    : zip_(path, parts_of(path, pickle.size(), storage_bytes), caller) {
  std::size_t part = 0;
  for (const std::string_view text : {std::string_view(pickle), kByteOrder, kFormatVersion})
    zip_.write(part++, std::as_bytes(std::span(text)));
}

void TensorFileWriter::write(std::size_t storage, std::span<const std::byte> bytes) {
  zip_.write(kFirstStorage + storage, bytes);
}
}  // namespace headrace::tools::pickle
