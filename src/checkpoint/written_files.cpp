// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/written_files.hpp"

#include <utility>

namespace headrace::checkpoint {
WrittenFiles::WrittenFiles(Manifest manifest, const std::string& directory, const Caller& caller,
                           std::span<std::byte> buffers)
    : manifest_(std::move(manifest)),
      layout_(layout_of(manifest_, directory)),
      caller_(caller),
      behind_(files_, buffers) {
  for (const PlacedTensor& tensor : layout_.tensors) sums_.emplace_back(tensor.size_bytes);
}

void WrittenFiles::create(const std::string& folder) {
  folder_ = folder;
  for (const PlacedFile& file : layout_.files) {
    files_.push_back(File::create(path_of(file.name), file.size_bytes, caller_));
    files_.back().write(std::as_bytes(std::span(file.header)), 0);
  }
}

void WrittenFiles::open(const std::string& folder) {
  folder_ = folder;
  for (const PlacedFile& file : layout_.files)
    files_.push_back(File::open_to_write(path_of(file.name)));
}

void WrittenFiles::write(std::uint32_t tensor, std::uint64_t at, std::span<const std::byte> bytes) {
  const PlacedTensor& placed = layout_.tensors[tensor];
  behind_.write(placed.file, placed.at + at, bytes);
  sums_[tensor].add(at, bytes);
}

void WrittenFiles::write_steps_and_indexes() {
  for (std::uint32_t t = 0; t < layout_.tensors.size(); ++t) {
    const PlacedTensor& tensor = layout_.tensors[t];
    if (tensor.kept) continue;
    const std::uint64_t step = manifest_.parameters[tensor.parameter].step;
    write(t, 0, std::as_bytes(std::span(&step, 1)));
  }
  for (const bool weights : {true, false}) {
    const std::string index = index_of(manifest_, layout_, weights);
    if (index.empty()) continue;
    write_file(path_of(index_name(weights)), std::as_bytes(std::span(index)), caller_);
  }
}

void WrittenFiles::sync() {
  behind_.finish();
  for (File& file : files_) file.sync();
}

void WrittenFiles::write_manifest() {
  for (std::uint32_t t = 0; t < sums_.size(); ++t)
    saved_tensor(manifest_, layout_, t).checksums = std::move(sums_[t].checksums());
  for (std::uint32_t f = 0; f < layout_.files.size(); ++f)
    saved_file(manifest_, f).header_checksum = checksum_of(layout_.files[f].header);
  const std::string text = text_of(manifest_);
  write_file(path_of(kManifestName), std::as_bytes(std::span(text)), caller_);
}
}  // namespace headrace::checkpoint
