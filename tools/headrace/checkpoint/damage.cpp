// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/damage.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "base/error_text.hpp"
#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/verified_files.hpp"
#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
using checkpoint::File;
using checkpoint::kChunkBytes;
using checkpoint::PlacedFile;
using checkpoint::PlacedTensor;

// What the error says of a file, without what it means for a load.
std::string fault_of(const Error& error) {
  if (error.code() == Code::kNotFound) return "it is not there";
  if (error.code() == Code::kCorrupt) return "it is cut off";
  return "it cannot be read: " + base::errno_text(error.sys_errno());
}

class Verification {
 public:
  Verification(OpenCheckpoint& open, const CheckpointProgress& progress)
      : open_(open), progress_(progress), bytes_(kChunkBytes) {}

  VerifiedCheckpoint run() {
    for (std::uint32_t f = 0; f < open_.layout.files.size(); ++f) verify_file(f);
    verify_trainer_state();
    for (const bool weights : {true, false}) verify_index(weights);
    look_for_others();
    return std::move(found_);
  }

 private:
  void note(const std::string& file, const std::string& what) {
    found_.damage.push_back({file, {}, 0, 0, what});
  }
  std::string path_of(const std::string& file) const { return open_.folder + "/" + file; }
  std::optional<File> open_file(const std::string& name);
  void verify_file(std::uint32_t file);
  void verify_tensor(std::uint32_t tensor, const File* file);
  std::string chunk_fault(std::uint32_t tensor, std::uint64_t chunk, const File& file);
  void add_range(std::uint32_t tensor, std::uint64_t chunk, const std::string& what);
  void verify_trainer_state();
  void verify_index(bool weights);
  void look_for_others();

  OpenCheckpoint& open_;
  const CheckpointProgress& progress_;
  std::vector<std::byte> bytes_;
  std::set<std::string> known_ = {checkpoint::kManifestName};
  VerifiedCheckpoint found_;
};

std::optional<File> Verification::open_file(const std::string& name) {
  known_.insert(name);
  try {
    return File::open(path_of(name));
  } catch (const Error& error) {
    note(name, fault_of(error));
    return std::nullopt;
  }
}

void Verification::verify_file(std::uint32_t f) {
  const PlacedFile& placed = open_.layout.files[f];
  const std::optional<File> file = open_file(placed.name);
  if (file) {
    try {
      for (const std::string& fault :
           {checkpoint::length_fault(*file, placed),
            checkpoint::header_fault(*file, placed, checkpoint::saved_file(open_.manifest, f))})
        if (!fault.empty()) note(placed.name, fault);
    } catch (const Error& error) {
      note(placed.name, "its header: " + fault_of(error));
    }
  }
  for (std::uint32_t i = 0; i < placed.tensors; ++i)
    verify_tensor(placed.first_tensor + i, file ? &*file : nullptr);
}

void Verification::verify_tensor(std::uint32_t tensor, const File* file) {
  const PlacedTensor& placed = open_.layout.tensors[tensor];
  for (std::uint64_t c = 0; c < checkpoint::chunks_of(placed.size_bytes); ++c) {
    progress_(open_.layout.files[placed.file].name, found_.verified_bytes);
    const std::string fault = file ? chunk_fault(tensor, c, *file) : "it is not there";
    if (!fault.empty()) add_range(tensor, c, fault);
    if (file) found_.verified_bytes += checkpoint::chunk_bytes_of(placed.size_bytes, c);
  }
}

std::string Verification::chunk_fault(std::uint32_t tensor, std::uint64_t chunk, const File& file) {
  const PlacedTensor& placed = open_.layout.tensors[tensor];
  const auto bytes = std::span(bytes_).first(checkpoint::chunk_bytes_of(placed.size_bytes, chunk));
  const auto& saved = checkpoint::saved_tensor(open_.manifest, open_.layout, tensor);
  try {
    if (!checkpoint::read_chunk(file, placed, saved, chunk, bytes)) return "its checksum differs";
  } catch (const Error& error) {
    return fault_of(error);
  }
  const std::uint64_t step = open_.manifest.parameters[placed.parameter].step;
  if (!placed.kept && !std::ranges::equal(bytes, std::as_bytes(std::span(&step, 1))))
    return "manifest.json has step " + std::to_string(step) + ", the tensor another";
  return {};
}

// Joined with the one before if that ends here and says the same.
void Verification::add_range(std::uint32_t tensor, std::uint64_t chunk, const std::string& what) {
  const PlacedTensor& placed = open_.layout.tensors[tensor];
  const std::string& name = checkpoint::saved_tensor(open_.manifest, open_.layout, tensor).name;
  const std::uint64_t begin = placed.at + chunk * kChunkBytes;
  const std::uint64_t end = begin + checkpoint::chunk_bytes_of(placed.size_bytes, chunk);
  if (!found_.damage.empty()) {
    CheckpointDamage& last = found_.damage.back();
    if (chunk > 0 && last.tensor == name && last.end_byte == begin && last.what == what) {
      last.end_byte = end;
      return;
    }
  }
  found_.damage.push_back({open_.layout.files[placed.file].name, name, begin, end, what});
}

void Verification::verify_trainer_state() {
  if (!open_.manifest.trainer_state) return;
  const std::string name = checkpoint::kTrainerStateName;
  const auto& [size_bytes, checksum] = *open_.manifest.trainer_state;
  const std::optional<File> file = open_file(name);
  if (!file) return;
  try {
    if (const std::uint64_t size = file->size_bytes(); size != size_bytes)
      return note(name, fmt::format("it has {} bytes, not {}", size, size_bytes));
    kernels::Hash128 hash;
    for (std::uint64_t at = 0; at < size_bytes; at += kChunkBytes) {
      progress_(name, found_.verified_bytes);
      const auto bytes = std::span(bytes_).first(std::min(kChunkBytes, size_bytes - at));
      file->read(bytes, at);
      hash.update(bytes);
      found_.verified_bytes += bytes.size();
    }
    if (hash.hex() != checksum) note(name, "its checksum differs");
  } catch (const Error& error) {
    if (error.code() == Code::kInterrupted) throw;
    note(name, fault_of(error));
  }
}

// Other programs find tensors by it. load_checkpoint() does not read it.
void Verification::verify_index(bool weights) {
  const std::string expected = checkpoint::index_of(open_.manifest, open_.layout, weights);
  if (expected.empty()) return;
  const std::string name = checkpoint::index_name(weights);
  const std::optional<File> file = open_file(name);
  if (!file) return;
  try {
    if (file->size_bytes() != expected.size() || checkpoint::text_in(*file) != expected)
      note(name, "it differs from manifest.json");
  } catch (const Error& error) {
    note(name, fault_of(error));
  }
}

// Other programs may take the tensors of such a file for those of the checkpoint.
bool looks_like_ours(const std::string& name) {
  return (name.starts_with("model") || name.starts_with("optimizer")) &&
         (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
}

void Verification::look_for_others() {
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(open_.folder)) {
    const std::string name = entry.path().filename().string();
    if (!known_.contains(name)) others.push_back(name);
  }
  std::ranges::sort(others);
  for (const std::string& name : others) {
    if (looks_like_ours(name))
      note(name, "it does not belong to the checkpoint, but other programs may read it");
    else
      found_.notes.push_back(base::one_line(name, 200) + " does not belong to the checkpoint");
  }
}
}  // namespace

VerifiedCheckpoint verify_checkpoint(OpenCheckpoint& open, const CheckpointProgress& progress) {
  return Verification(open, progress).run();
}

std::string damage_line(const CheckpointDamage& damage) {
  const std::string file = base::one_line(damage.file, 200);
  if (damage.tensor.empty()) return file + ": " + damage.what;
  return fmt::format("{}, bytes {} to {}: tensor {}: {}", file, damage.begin_byte, damage.end_byte,
                     checkpoint::shown_name(damage.tensor), damage.what);
}
}  // namespace headrace::tools
