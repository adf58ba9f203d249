// SPDX-License-Identifier: Apache-2.0
// safetensors.cpp: the files: opened with care, read in place, replaced whole or not at all.
#include "safetensors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/whole_transfers.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "failures.hpp"
#include "kernels/hash.hpp"

namespace train_gpt {
namespace {
using headrace::Code;
namespace tools = headrace::tools;

// Reads `out.size()` bytes at `offset`; false at the file's end.
bool read_exactly(int descriptor, std::uint64_t offset, std::span<std::byte> out,
                  const std::string& path) {
  const headrace::base::Moved moved = headrace::base::read_at(descriptor, offset, out);
  if (moved.error != 0) {
    fail(Code::kIo,
         "reading " + std::to_string(out.size() - moved.size_bytes) + " bytes at " +
             std::to_string(offset + moved.size_bytes) + " of '" + path +
             "': " + errno_text(moved.error) +
             "; the weights are incomplete. Check the drive, or fetch the file again.",
         moved.error);
  }
  return moved.size_bytes == out.size();
}

[[noreturn]] void fail_unsound(const std::string& path, const std::string& what) {
  fail(Code::kInvalidArgument,
       "'" + path + "' is not a sound safetensors file: " + what +
           "; nothing was read from it. Write it again with --save, or fetch it again.");
}

std::string read_header(int descriptor, std::uint64_t file_bytes, const std::string& path) {
  std::array<std::byte, tools::kLengthBytes> begin;
  if (file_bytes < begin.size() || !read_exactly(descriptor, 0, begin, path)) {
    fail_unsound(path, "it has " + std::to_string(file_bytes) +
                           " bytes, less than its header's length takes");
  }
  const std::uint64_t length = tools::header_length(begin);
  if (length > tools::kMostHeaderBytes || length > file_bytes - begin.size()) {
    fail_unsound(path, "its header should have " + std::to_string(length) +
                           " bytes, the file has " + std::to_string(file_bytes) +
                           " and a header at most " + std::to_string(tools::kMostHeaderBytes));
  }
  std::string header(length, '\0');
  if (!read_exactly(descriptor, begin.size(), std::as_writable_bytes(std::span(header)), path))
    fail_unsound(path, "it became shorter while it was read");
  return header;
}

// Of the first value that is not finite, by the bits of its exponent.
template <class Word>
std::string non_finite_text(std::span<const std::byte> bytes, std::uint64_t first_byte,
                            Word exponent, Word mantissa) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word value{};
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if ((value & exponent) != exponent) continue;
    return "element " + std::to_string(first_byte / sizeof(Word) + i) +
           ((value & mantissa) != 0 ? " is not a number" : " is infinite");
  }
  return "";
}

// `bytes` of a tensor, from `first` on.
std::string non_finite_text(const std::string& dtype, std::span<const std::byte> bytes,
                            std::uint64_t first) {
  if (dtype == "BF16") return non_finite_text<std::uint16_t>(bytes, first, 0x7f80, 0x7f);
  if (dtype == "F16") return non_finite_text<std::uint16_t>(bytes, first, 0x7c00, 0x3ff);
  if (dtype == "F32") return non_finite_text<std::uint32_t>(bytes, first, 0x7f800000, 0x7fffff);
  return "";
}

std::string shape_text(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  std::string text = dtype + " [";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}
}  // namespace

SafetensorsReader::SafetensorsReader(SafetensorsReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_begin_(other.data_begin_),
      file_bytes_(other.file_bytes_),
      tensors_(std::move(other.tensors_)) {}

SafetensorsReader::~SafetensorsReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SafetensorsReader SafetensorsReader::open(const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  reader.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (reader.descriptor_ < 0 || ::fstat(reader.descriptor_, &status) != 0) {
    const int number = errno;
    fail(number == ENOENT ? Code::kNotFound : Code::kIo,
         "cannot open '" + path + "': " + errno_text(number) +
             "; there are no weights to start from. Give --init the folder that --save wrote.",
         number);
  }
  if (!S_ISREG(status.st_mode)) fail_unsound(path, "it is no regular file");
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  reader.file_bytes_ = file_bytes;
  const std::string header = read_header(reader.descriptor_, file_bytes, path);
  reader.data_begin_ = tools::kLengthBytes + header.size();
  try {
    reader.tensors_ = tools::parse_header(header, tools::DataOffsets::kWanted);
    tools::check_data(reader.tensors_, file_bytes - reader.data_begin_);
  } catch (const tools::SafetensorsFault& fault) {
    fail_unsound(path, fault.what());
  }
  return reader;
}

std::string SafetensorsReader::fingerprint() const {
  constexpr std::uint64_t kBlock = 4096, kSamples = 1024;
  headrace::kernels::Hash128 hash;
  std::vector<std::byte> block(kBlock);
  const auto add = [&](std::uint64_t at, std::uint64_t size) {
    const auto moved = headrace::base::read_at(descriptor_, at, std::span(block).first(size));
    if (moved.error != 0 || moved.size_bytes != size) {
      fail(Code::kIo,
           "cannot read '" + path_ + "': " + errno_text(moved.error) +
               "; the run was not started. Give --init another file.",
           moved.error);
    }
    hash.update(std::span(block).first(size));
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

void SafetensorsReader::require(const std::string& name, const std::string& dtype,
                                const std::vector<std::int64_t>& shape) const {
  const auto found = tensors_.find(name);
  const std::string wanted = shape_text(dtype, shape);
  if (found == tensors_.end()) {
    fail(Code::kInvalidArgument,
         "'" + path_ + "' has no tensor '" + name + "', which this model needs as " + wanted +
             "; nothing was read. Give the --layers, --hidden and --seq it was saved with.");
  }
  if (found->second.dtype == dtype && found->second.shape == shape) return;
  fail(Code::kInvalidArgument,
       "'" + name + "' is " + shape_text(found->second.dtype, found->second.shape) + " in '" +
           path_ + "', this model needs " + wanted +
           (found->second.shape == shape
                ? "; nothing was read. Set bf16.enabled or fp16.enabled as it was saved with."
                : "; nothing was read. Give the --layers, --hidden and --seq it was saved with."));
}

void SafetensorsReader::read(const std::string& name, std::uint64_t first_byte,
                             std::span<std::byte> out) const {
  const auto found = tensors_.find(name);
  const std::uint64_t end = first_byte + out.size();
  if (found == tensors_.end() || found->second.end - found->second.begin < end) {
    fail(Code::kInvalidArgument,
         "'" + name + "' is not in '" + path_ + "' with " + std::to_string(end) + " bytes");
  }
  if (!read_exactly(descriptor_, data_begin_ + found->second.begin + first_byte, out, path_)) {
    fail(Code::kIo,
         "'" + path_ + "' became shorter while '" + name +
             "' was read; the weights are incomplete. Start from a file that does not change.");
  }
  const std::string fault = non_finite_text(found->second.dtype, out, first_byte);
  if (!fault.empty()) {
    fail(Code::kInvalidArgument,
         "'" + path_ + "': '" + name + "' has values that are not finite, " + fault +
             "; no training could start from them. Give --init weights of an earlier save.");
  }
}

std::string header_of(const std::vector<TensorEntry>& tensors, std::uint64_t& data_bytes) {
  std::vector<headrace::checkpoint::TensorHeader> headers;
  data_bytes = 0;
  for (const TensorEntry& entry : tensors) {
    headers.push_back({entry.name, entry.dtype, entry.shape, tools::bytes_of(entry)});
    data_bytes += headers.back().size_bytes;
  }
  return headrace::checkpoint::safetensors_header(headers);
}

SafetensorsWriter::SafetensorsWriter(std::string folder, const std::vector<TensorEntry>& tensors,
                                     const std::string& name)
    : folder_(std::move(folder)), target_(folder_ + "/" + name) {
  std::uint64_t data_bytes = 0;
  const std::string header = header_of(tensors, data_bytes);
  expected_bytes_ = header.size() + data_bytes;
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = folder_ + "/.model.safetensors." + std::to_string(::getpid()) + "." +
                 std::to_string(attempt);
    descriptor_ =
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ >= 0 || (errno == EEXIST && attempt < 1000)) continue;
    const std::string path = std::exchange(temporary_, {});
    const int number = errno;
    fail(Code::kIo,
         "cannot create '" + path + "': " + errno_text(number) +
             "; the weights were not saved. Give --save a folder that you may write to.",
         number);
  }
  try {
    append(std::as_bytes(std::span(header)));
  } catch (...) {
    // No destructor runs for an object that was never made.
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void SafetensorsWriter::fail_write(const char* what, int number) const {
  const bool full = number == ENOSPC || number == EDQUOT;
  fail(full ? Code::kNoSpace : Code::kIo,
       std::string(what) + " '" + temporary_ + "' after " + std::to_string(written_bytes_) +
           " of " + std::to_string(expected_bytes_) + " bytes: " + errno_text(number) + "; '" +
           target_ + "' is as it was before. " +
           (full              ? "Make room, or save elsewhere."
            : number == EFBIG ? "Raise the limit on the size of files (ulimit -f)."
                              : "Check the drive, or save elsewhere."),
       number);
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  const headrace::base::Moved moved = headrace::base::write_at(descriptor_, written_bytes_, bytes);
  written_bytes_ += moved.size_bytes;
  if (moved.error != 0) fail_write("writing", moved.error);
}

void SafetensorsWriter::finish() {
  if (written_bytes_ != expected_bytes_) {
    fail(Code::kWrongState, "'" + target_ + "' got " + std::to_string(written_bytes_) +
                                " bytes, its header promises " + std::to_string(expected_bytes_) +
                                "; it was not saved.");
  }
  if (::fsync(descriptor_) != 0) fail_write("making durable", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_write("closing", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_write("renaming", errno);
  temporary_.clear();
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool durable = folder >= 0 && (::fsync(folder) == 0 || errno == EINVAL);
  const int number = errno;
  if (folder >= 0) ::close(folder);
  if (!durable) {
    fail(Code::kIo,
         "'" + target_ + "' is written, but its folder cannot be made durable: " +
             errno_text(number) + "; a power cut may undo it. Save elsewhere, or run sync.",
         number);
  }
}
}  // namespace train_gpt
