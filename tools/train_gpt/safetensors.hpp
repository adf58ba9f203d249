// SPDX-License-Identifier: Apache-2.0
// safetensors.hpp: reads and writes model.safetensors, tensor by tensor, never the whole file in
// memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "safetensors/header.hpp"

namespace train_gpt {
using headrace::tools::TensorEntry;

// Ownership: an open descriptor.
// Threads:   one at a time.
class SafetensorsReader {
 public:
  // Throws headrace::Error kNotFound or kIo for a file that cannot be opened, kInvalidArgument
  // naming the first fault of one that is damaged or not of this format.
  static SafetensorsReader open(const std::string& path);
  SafetensorsReader(SafetensorsReader&& other) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) = delete;
  ~SafetensorsReader();

  const std::string& path() const noexcept { return path_; }
  // In order of names.
  const headrace::tools::TensorsByName& tensors() const noexcept { return tensors_; }
  // Throws kInvalidArgument unless the tensor is there with this dtype and shape, saying what is
  // there instead.
  void require(const std::string& name, const std::string& dtype,
               const std::vector<std::int64_t>& shape) const;
  // Bytes of one tensor, from `first_byte` on, which is a whole number of elements. Throws kIo, and
  // kInvalidArgument if a BF16, F16 or F32 is not finite: nothing could be trained from it.
  void read(const std::string& name, std::uint64_t first_byte, std::span<std::byte> out) const;
  // XXH3-128 of the header and of a sample of the tensors' bytes, spread evenly. Throws kIo.
  std::string fingerprint() const;

 private:
  SafetensorsReader() = default;
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t data_begin_ = 0, file_bytes_ = 0;
  headrace::tools::TensorsByName tensors_;
};

inline constexpr const char* kModelFile = "model.safetensors";

// The first bytes of a file with these tensors: the header, and its length before it. `data_bytes`
// becomes the sum of the tensors' bytes.
std::string header_of(const std::vector<TensorEntry>& tensors, std::uint64_t& data_bytes);

// Writes a file of a folder: to a temporary file beside it, made durable, then renamed over
// it. Without finish() nothing is left. Threads: one at a time.
class SafetensorsWriter {
 public:
  // `tensors` in the order in which their bytes will come. Throws kIo, kNoSpace.
  SafetensorsWriter(std::string folder, const std::vector<TensorEntry>& tensors,
                    const std::string& name = kModelFile);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // The next bytes, in order. Throws kIo, kNoSpace.
  void append(std::span<const std::byte> bytes);
  // Throws kWrongState when bytes are missing; kIo.
  void finish();

 private:
  [[noreturn]] void fail_write(const char* what, int number) const;
  std::string folder_;
  std::string target_;
  std::string temporary_;
  int descriptor_ = -1;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
};
}  // namespace train_gpt
