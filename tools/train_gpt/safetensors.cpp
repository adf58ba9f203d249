// SPDX-License-Identifier: Apache-2.0
// safetensors.cpp: the file: written beside, replaced whole or not at all.
#include "safetensors.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "failures.hpp"

namespace train_gpt {
using headrace::Code;

SafetensorsWriter::SafetensorsWriter(std::string folder, const std::vector<TensorEntry>& tensors,
                                     const std::string& name)
    : folder_(std::move(folder)), target_(folder_ + "/" + name) {
  std::uint64_t data_bytes = 0;
  const std::string header = headrace::tools::header_of(tensors, data_bytes);
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

void SafetensorsWriter::fail_write(const char* what) const {
  const int number = errno;
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
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_write("writing");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    written_bytes_ += static_cast<std::uint64_t>(done);
  }
}

void SafetensorsWriter::finish() {
  if (written_bytes_ != expected_bytes_) {
    fail(Code::kWrongState, "'" + target_ + "' got " + std::to_string(written_bytes_) +
                                " bytes, its header promises " + std::to_string(expected_bytes_) +
                                "; it was not saved.");
  }
  if (::fsync(descriptor_) != 0) fail_write("making durable");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_write("closing");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_write("renaming");
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
