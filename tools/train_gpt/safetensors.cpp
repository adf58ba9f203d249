// SPDX-License-Identifier: Apache-2.0
// safetensors.cpp: the files: replaced whole or not at all.
#include "safetensors.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/sync_folder.hpp"
#include "base/unique_fd.hpp"
#include "base/whole_transfers.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "failures.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

constexpr const char* kHelp = "Give --init the folder that --save wrote, or that of a checkpoint.";
}  // namespace

InitialWeights open_initial_weights(const std::string& path) {
  return InitialWeights(path, "--init", kHelp);
}

void require(const InitialWeights& weights, const std::string& name, const std::string& dtype,
             const std::vector<std::int64_t>& shape) {
  using headrace::checkpoint::shape_text;
  const TensorEntry* const found = weights.find(name);
  const std::string wanted = shape_text(dtype, shape);
  if (found == nullptr) {
    fail(Code::kInvalidArgument,
         "'" + weights.path() + "' has no tensor '" + name + "', which this model needs as " +
             wanted +
             "; nothing was read. Give the --layers, --hidden and --seq it was saved with.");
  }
  if (found->dtype == dtype && found->shape == shape) return;
  fail(Code::kInvalidArgument,
       "'" + name + "' is " + shape_text(found->dtype, found->shape) + " in '" + weights.path() +
           "', this model needs " + wanted +
           (found->shape == shape
                ? "; nothing was read. Set bf16.enabled or fp16.enabled as it was saved with."
                : "; nothing was read. Give the --layers, --hidden and --seq it was saved with."));
}

std::string header_of(const std::vector<TensorEntry>& tensors, std::uint64_t& data_bytes) {
  std::vector<headrace::checkpoint::TensorHeader> headers;
  data_bytes = 0;
  for (const TensorEntry& entry : tensors) {
    headers.push_back(
        {entry.name, entry.dtype, entry.shape, headrace::checkpoint::bytes_of(entry)});
    data_bytes += headers.back().size_bytes;
  }
  return headrace::checkpoint::safetensors_header(headers);
}

namespace {
constexpr std::string_view kTemporaryBegin = ".model.safetensors.";

// ".model.safetensors.PID.ATTEMPT".
bool is_temporary(const std::string& name) {
  return name.starts_with(kTemporaryBegin) && name.size() > kTemporaryBegin.size() &&
         name.find_first_not_of("0123456789.", kTemporaryBegin.size()) == std::string::npos;
}
}  // namespace

void remove_dead_writes(const std::string& folder) noexcept try {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (!is_temporary(entry.path().filename().string())) continue;
    const headrace::base::UniqueFd file(
        ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  }
} catch (const std::exception&) {  // a folder that cannot be read: the save will say so
}

// False if the name is taken, or another process removed the file before it was locked.
bool SafetensorsWriter::open_locked() {
  descriptor_ =
      ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) return false;
  struct stat status {};
  (void)::flock(descriptor_, LOCK_EX);  // where there are locks
  if (::fstat(descriptor_, &status) != 0 || status.st_nlink > 0) return true;
  ::close(std::exchange(descriptor_, -1));
  errno = EEXIST;
  return false;
}

SafetensorsWriter::SafetensorsWriter(std::string folder, const std::vector<TensorEntry>& tensors,
                                     const std::string& name)
    : folder_(std::move(folder)), target_(folder_ + "/" + name) {
  std::uint64_t data_bytes = 0;
  const std::string header = header_of(tensors, data_bytes);
  expected_bytes_ = header.size() + data_bytes;
  remove_dead_writes(folder_);
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = folder_ + "/" + std::string(kTemporaryBegin) + std::to_string(::getpid()) + "." +
                 std::to_string(attempt);
    if (open_locked() || (errno == EEXIST && attempt < 1000)) continue;
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
  if (const int number = headrace::base::sync_folder(folder_); number != 0) {
    fail(Code::kIo,
         "'" + target_ + "' is written, but its folder cannot be made durable: " +
             errno_text(number) + "; a power cut may undo it. Save elsewhere, or run sync.",
         number);
  }
}
}  // namespace train_gpt
