// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_tensors.hpp"

#include <filesystem>

#include "base/error_text.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/weight_map.hpp"
#include "headrace/error.hpp"

namespace headrace::checkpoint {
namespace {
constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
}  // namespace

ModelTensors::ModelTensors(const std::string& path, const char* call, const char* help)
    : path_(path), call_(call), help_(help) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    add_all(path);
  } else if (fs::exists(path + "/" + kIndex, ignored)) {
    add_indexed();
  } else {
    add_all(fs::is_directory(path, ignored) ? path + "/" + kModel : path);
  }
}

void ModelTensors::refuse(const std::string& cause) const {
  throw Error(Code::kInvalidArgument, std::string(call_) + " of " + path_ + ": " + cause +
                                          "; nothing was changed. " + help_);
}

void ModelTensors::add_all(const std::string& file) {
  files_.push_back(SafetensorsFile::open(file, help_));
  for (const auto& [name, entry] : files_.back().tensors()) file_of_[name] = 0;
}

void ModelTensors::add_indexed() {
  constexpr std::uint64_t kMostIndexBytes = std::uint64_t{256} << 20;
  const File file = File::open(path_ + "/" + kIndex, {call_, "nothing was changed"});
  try {
    for (const auto& [name, in] : parse_weight_map(text_in(file, kMostIndexBytes))) {
      if (in.empty() || in.find('/') != std::string::npos || in == "." || in == "..")
        throw SafetensorsFault{"it names no file of this folder for " + base::quoted_name(name)};
      add(name, in);
    }
  } catch (const SafetensorsFault& fault) {
    refuse(std::string(kIndex) + ": " + fault.what());
  }
}

void ModelTensors::add(const std::string& name, const std::string& file) {
  const auto [at, is_new] = index_of_.try_emplace(file, static_cast<std::uint32_t>(files_.size()));
  if (is_new) files_.push_back(SafetensorsFile::open(path_ + "/" + file, help_));
  if (!files_[at->second].tensors().contains(name)) {
    refuse(file + " has no tensor " + base::quoted_name(name) + ", which " + kIndex +
           " places there");
  }
  file_of_[name] = at->second;
}

const TensorEntry* ModelTensors::find(const std::string& name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : &files_[found->second].tensors().at(name);
}

void ModelTensors::read(const std::string& name, std::uint64_t first_byte,
                        std::span<std::byte> out) const {
  files_[file_of_.at(name)].read(name, first_byte, out);
}

std::string ModelTensors::fingerprint() const {
  std::string all;
  for (const SafetensorsFile& file : files_) all += file.fingerprint();
  return all;
}
}  // namespace headrace::checkpoint
