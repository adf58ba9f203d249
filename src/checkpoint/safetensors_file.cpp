// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "base/whole_transfers.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"

namespace headrace::checkpoint {
namespace {
// Of the first value that is not finite, by the bits of its exponent.
template <class Word>
std::string non_finite(std::span<const std::byte> bytes, std::uint64_t first_byte, Word exponent,
                       Word mantissa) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word value{};
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if ((value & exponent) != exponent) continue;
    return "element " + std::to_string(first_byte / sizeof(Word) + i) +
           ((value & mantissa) != 0 ? " is not a number" : " is infinite");
  }
  return "";
}
}  // namespace

std::string non_finite_text(const std::string& dtype, std::span<const std::byte> bytes,
                            std::uint64_t first_byte) {
  if (dtype == "BF16") return non_finite<std::uint16_t>(bytes, first_byte, 0x7f80, 0x7f);
  if (dtype == "F16") return non_finite<std::uint16_t>(bytes, first_byte, 0x7c00, 0x3ff);
  if (dtype == "F32") return non_finite<std::uint32_t>(bytes, first_byte, 0x7f800000, 0x7fffff);
  return "";
}

std::string shape_text(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  std::string text = base::one_line(dtype) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

SafetensorsFile SafetensorsFile::open(const std::string& path, const std::string& help) {
  SafetensorsFile file(path, help,
                       base::UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)));
  struct stat status {};
  if (!file.fd_ || ::fstat(file.fd_.get(), &status) != 0) {
    const int number = errno;
    throw Error(number == ENOENT ? Code::kNotFound : Code::kIo,
                "cannot open '" + path + "': " + base::errno_text(number) +
                    "; there are no weights to start from. " + help,
                number);
  }
  if (!S_ISREG(status.st_mode)) file.refuse("it is no regular file");
  file.file_bytes_ = static_cast<std::uint64_t>(status.st_size);
  try {
    const std::string header = file.read_header();
    file.data_begin_ = kLengthBytes + header.size();
    file.tensors_ = parse_header(header, DataOffsets::kWanted);
    check_data(file.tensors_, file.file_bytes_ - file.data_begin_);
  } catch (const SafetensorsFault& fault) {
    file.refuse(fault.what());
  }
  return file;
}

std::string SafetensorsFile::read_header() {
  std::array<std::byte, kLengthBytes> begin;
  if (file_bytes_ < begin.size() || !read_at(0, begin)) {
    throw SafetensorsFault("it has " + std::to_string(file_bytes_) +
                           " bytes, less than its header's length takes");
  }
  const std::uint64_t length = header_length(begin);
  if (length > kMostHeaderBytes || length > file_bytes_ - begin.size()) {
    throw SafetensorsFault("its header should have " + std::to_string(length) +
                           " bytes, the file has " + std::to_string(file_bytes_) +
                           " and a header at most " + std::to_string(kMostHeaderBytes));
  }
  std::string header(length, '\0');
  if (!read_at(begin.size(), std::as_writable_bytes(std::span(header))))
    throw SafetensorsFault("it became shorter while it was read");
  return header;
}

// False at the file's end.
bool SafetensorsFile::read_at(std::uint64_t at, std::span<std::byte> out) const {
  const base::Moved moved = base::read_at(fd_.get(), at, out);
  if (moved.error != 0) {
    throw Error(Code::kIo,
                "reading " + std::to_string(out.size() - moved.size_bytes) + " bytes at " +
                    std::to_string(at + moved.size_bytes) + " of '" + path_ + "': " +
                    base::errno_text(moved.error) + "; the weights are incomplete. " + help_,
                moved.error);
  }
  return moved.size_bytes == out.size();
}

void SafetensorsFile::refuse(const std::string& what) const {
  throw Error(Code::kInvalidArgument, "'" + path_ + "' is not a sound safetensors file: " + what +
                                          "; nothing was read from it. " + help_);
}

std::string SafetensorsFile::fingerprint() const {
  constexpr std::uint64_t kBlock = 4096, kSamples = 1024;
  kernels::Hash128 hash;
  std::vector<std::byte> block(kBlock);
  const auto add = [&](std::uint64_t at, std::uint64_t size) {
    const auto bytes = std::span(block).first(size);
    if (!read_at(at, bytes)) refuse("it became shorter while it was read");
    hash.update(bytes);
  };
  for (std::uint64_t at = 0; at < data_begin_; at += kBlock)
    add(at, std::min(kBlock, data_begin_ - at));
  const std::uint64_t blocks = (file_bytes_ - data_begin_) / kBlock;
  const std::uint64_t taken = std::min(blocks, kSamples);
  for (std::uint64_t i = 0; i < taken; ++i) add(data_begin_ + i * blocks / taken * kBlock, kBlock);
  const std::uint64_t end = data_begin_ + blocks * kBlock;
  if (file_bytes_ > end) add(end, file_bytes_ - end);
  return hash.hex();
}

void SafetensorsFile::read(const std::string& name, std::uint64_t first_byte,
                           std::span<std::byte> out) const {
  const auto found = tensors_.find(name);
  const std::uint64_t end = first_byte + out.size();
  if (found == tensors_.end() || found->second.end - found->second.begin < end) {
    throw Error(Code::kInvalidArgument, base::quoted_name(name) + " is not in '" + path_ +
                                            "' with " + std::to_string(end) + " bytes. " + help_);
  }
  if (!read_at(data_begin_ + found->second.begin + first_byte, out)) {
    throw Error(Code::kIo,
                "'" + path_ + "' became shorter while " + base::quoted_name(name) +
                    " was read; the weights are incomplete. Start from a file that does not "
                    "change.");
  }
  const std::string fault = non_finite_text(found->second.dtype, out, first_byte);
  if (!fault.empty()) {
    throw Error(Code::kInvalidArgument, "'" + path_ + "': " + base::quoted_name(name) +
                                            " has values that are not finite, " + fault +
                                            "; no training could start from them. " + help_);
  }
}
}  // namespace headrace::checkpoint
