// SPDX-License-Identifier: Apache-2.0
// safetensors_file.hpp: reads a safetensors file of any program, tensor by tensor. The file is
// untrusted: what it says is checked before anything is made of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/unique_fd.hpp"
#include "checkpoint/safetensors_parse.hpp"

namespace headrace::checkpoint {
// Threads: one at a time.
class SafetensorsFile {
 public:
  // `help` ends every error: what to do, such as "Fetch it again."
  // Throws kNotFound or kIo for a file that cannot be opened, kInvalidArgument naming the first
  // fault of one that is damaged or not of this format.
  static SafetensorsFile open(const std::string& path, const std::string& help);

  const std::string& path() const noexcept { return path_; }
  // In order of names.
  const TensorsByName& tensors() const noexcept { return tensors_; }
  // Bytes of one tensor, from `first_byte` on, which is a whole number of elements. Throws kIo, and
  // kInvalidArgument if a BF16, F16 or F32 is not finite: nothing could be trained from it.
  void read(const std::string& name, std::uint64_t first_byte, std::span<std::byte> out) const;
  // XXH3-128 of the header and of a sample of the tensors' bytes, spread evenly. Throws kIo.
  std::string fingerprint() const;

 private:
  SafetensorsFile(std::string path, std::string help, base::UniqueFd fd)
      : path_(std::move(path)), help_(std::move(help)), fd_(std::move(fd)) {}
  std::string read_header();
  bool read_at(std::uint64_t at, std::span<std::byte> out) const;
  [[noreturn]] void refuse(const std::string& what) const;

  std::string path_, help_;
  base::UniqueFd fd_;
  std::uint64_t data_begin_ = 0, file_bytes_ = 0;
  TensorsByName tensors_;
};

// "element 7 is infinite": of `bytes` of a tensor, from `first_byte` on. "": all are finite.
std::string non_finite_text(const std::string& dtype, std::span<const std::byte> bytes,
                            std::uint64_t first_byte);
// "BF16 [3, 2]"
std::string shape_text(const std::string& dtype, const std::vector<std::int64_t>& shape);
}  // namespace headrace::checkpoint
