// SPDX-License-Identifier: Apache-2.0
// model_tensors.hpp: the tensors of a model that any program has written, as Hugging Face lays them
// out: one safetensors file, a folder with model.safetensors, or one with several and their index.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors_file.hpp"

namespace headrace::checkpoint {
// Threads: one at a time.
class ModelTensors {
 public:
  // Opens all files. Errors name `call`, and end with `help`. Throws as SafetensorsFile::open(),
  // and kInvalidArgument for an index that names no file, a tensor twice, or one that is not there.
  ModelTensors(const std::string& path, const char* call, const char* help);

  const std::string& path() const noexcept { return path_; }
  // With an index: those that it names. Each has the number of its file.
  const std::map<std::string, std::uint32_t>& names() const noexcept { return file_of_; }
  // Null: there is none of this name.
  const TensorEntry* find(const std::string& name) const;
  // Of a tensor that is there, as SafetensorsFile::read().
  void read(const std::string& name, std::uint64_t first_byte, std::span<std::byte> out) const;
  std::string fingerprint() const;

 private:
  void add_all(const std::string& file);
  void add_indexed();
  void add(const std::string& name, const std::string& file);
  [[noreturn]] void refuse(const std::string& cause) const;

  const std::string path_;
  const char* const call_;
  const char* const help_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::uint32_t> file_of_, index_of_;  // by tensor, by name of a file
};
}  // namespace headrace::checkpoint
