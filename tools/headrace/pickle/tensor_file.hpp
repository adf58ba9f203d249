// SPDX-License-Identifier: Apache-2.0
// tensor_file.hpp: a file that torch.save() has written, read without torch: its values as data,
// and the bytes of its tensors, part by part.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "pickle/unpickler.hpp"
#include "pickle/zip_reader.hpp"

namespace headrace::tools::pickle {
// Untrusted. Every error is a Fault that names the path.
// Memory: the pickle and what it holds, and 1 MiB while an entry is compared with its checksum.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path);
  const std::string& path() const noexcept { return zip_.path(); }
  const Value& root() const noexcept { return pickle_->root(); }
  const std::set<std::string>& unknown() const noexcept { return pickle_->unknown(); }

  // That it is a tensor whose values lie one after the other, in an entry that has all of them.
  const PickledTensor& tensor(const Value& value, const std::string& what) const;
  // Bytes of a tensor from `first_byte` on. The first read of each storage compares it with its
  // checksum.
  void read(const PickledTensor& tensor, std::uint64_t first_byte, std::span<std::byte> out);
  [[noreturn]] void refuse(const std::string& cause) const;

 private:
  std::string entry_of(const PickledTensor& tensor) const {
    return begin_ + "data/" + tensor.storage;
  }
  void read_pickle();

  ZipReader zip_;
  std::string begin_;  // of the names of its entries: "fp32/"
  std::optional<Pickle> pickle_;
  std::set<std::string> verified_;
};
}  // namespace headrace::tools::pickle
