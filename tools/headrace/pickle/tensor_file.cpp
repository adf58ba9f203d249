// SPDX-License-Identifier: Apache-2.0
#include "pickle/tensor_file.hpp"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "pickle/fault.hpp"

namespace headrace::tools::pickle {
namespace {
constexpr std::string_view kPickleName = "data.pkl";

// torch names all entries "NAME/...", by the name of the file when it was saved.
std::string begin_of(const ZipReader& zip) {
  std::string begin;
  std::size_t found = 0;
  for (const auto& [name, entry] : zip.entries()) {
    const std::size_t slash = name.find('/');
    if (slash == std::string::npos || name.substr(slash + 1) != kPickleName) continue;
    begin = name.substr(0, slash + 1);
    ++found;
  }
  if (found == 1) return begin;
  throw Fault(zip.path() + (found == 0
                                ? ": it has no entry data.pkl, so torch.save() did not write it"
                                : ": it has several entries data.pkl"));
}
}  // namespace

TensorFile::TensorFile(const std::string& path) : zip_(path), begin_(begin_of(zip_)) {
  try {
    read_pickle();
  } catch (const Fault& fault) {
    const bool named = std::string_view(fault.what()).starts_with(path);
    throw named ? fault : fault.in(path);
  }
}

void TensorFile::read_pickle() {
  const std::string order_name = begin_ + "byteorder";
  if (zip_.entries().contains(order_name)) {
    const ZipEntry& entry = zip_.entry(order_name);
    std::string order(std::min<std::uint64_t>(entry.size_bytes, 16), '\0');
    zip_.read(entry, 0, std::as_writable_bytes(std::span(order)));
    if (order != "little") {
      throw Fault("its values are not little-endian", Code::kUnsupported,
                  "Save it on a machine that is.");
    }
  }
  const std::string name = begin_ + std::string(kPickleName);
  const ZipEntry& entry = zip_.entry(name);
  if (entry.size_bytes > kMostPickleBytes)
    throw Fault(fmt::format("its pickle has {} bytes, more than 64 MiB", entry.size_bytes));
  zip_.verify(name);
  std::vector<std::byte> bytes(entry.size_bytes);
  zip_.read(entry, 0, bytes);
  pickle_.emplace(std::move(bytes));
}

void TensorFile::refuse(const std::string& cause) const { throw Fault(path() + ": " + cause); }

const PickledTensor& TensorFile::tensor(const Value& value, const std::string& what) const {
  if (!value.is(Kind::kTensor)) refuse(what + " is no tensor, but " + text_of(value));
  const PickledTensor& tensor = *value.tensor;
  if (!tensor.is_contiguous()) {
    throw Fault(path() + ": the values of " + what + " do not lie one after the other",
                Code::kUnsupported, "Save it after contiguous().");
  }
  const std::uint64_t size = zip_.entry(entry_of(tensor)).size_bytes,
                      expected = tensor.storage_elements * tensor.element_bytes();
  if (size != expected)
    refuse(fmt::format("the entry of {} has {} bytes, not {}", what, size, expected));
  return tensor;
}

void TensorFile::read(const PickledTensor& tensor, std::uint64_t first_byte,
                      std::span<std::byte> out) {
  const std::string name = entry_of(tensor);
  if (verified_.insert(name).second) zip_.verify(name);
  zip_.read(zip_.entry(name), tensor.first_element * tensor.element_bytes() + first_byte, out);
}
}  // namespace headrace::tools::pickle
