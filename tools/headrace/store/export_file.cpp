// SPDX-License-Identifier: Apache-2.0
#include "store/export_file.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error_text.hpp"
#include "base/file_space.hpp"
#include "base/sync_folder.hpp"
#include "base/whole_transfers.hpp"
#include "headrace/error.hpp"
#include "swap/refusal.hpp"

namespace headrace::tools {
namespace {
[[noreturn]] void fail(const std::string& what, int error, const char* follows) {
  throw Error(swap::code_of(error),
              what + ": " + base::errno_text(error) + "; " + follows + "; " +
                  swap::what_helps(error, "file"),
              error);
}
constexpr const char* kNoFile = "no file was written, the store is as it was";
}  // namespace

ExportFile::ExportFile(std::string path, std::uint64_t size_bytes)
    : path_(std::move(path)), temporary_(path_ + ".headrace-tmp") {
  refuse_existing();
  swap::check_file_size_limit(path_, size_bytes);
  open_locked();
  try {
    refuse_existing();  // another export may have ended since
    reserve(size_bytes);
  } catch (...) {
    ::unlink(temporary_.c_str());
    throw;
  }
}

ExportFile::~ExportFile() {
  if (!finished_) ::unlink(temporary_.c_str());
}

void ExportFile::refuse_existing() const {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0 && errno == ENOENT) return;
  throw Error(Code::kInvalidArgument,
              path_ + " exists; nothing was written. Name another file, or remove that one first.");
}

// What a killed export has left is a file.
void ExportFile::refuse_no_file(unsigned mode) const {
  if (S_ISREG(mode)) return;
  throw Error(Code::kInvalidArgument, temporary_ +
                                          " is no regular file; nothing was written. Move it away, "
                                          "or name another file.");
}

bool ExportFile::is_temporary(const struct stat& open) const {
  struct stat named {};
  return ::lstat(temporary_.c_str(), &named) == 0 && named.st_ino == open.st_ino &&
         named.st_dev == open.st_dev;
}

void ExportFile::open_locked() {
  struct stat status {};
  do {
    if (::lstat(temporary_.c_str(), &status) == 0) refuse_no_file(status.st_mode);
    // Not blocking: a FIFO that comes meanwhile has no reader.
    fd_.reset(
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    if (!fd_) fail("could not make " + temporary_, errno, kNoFile);
    if (::fstat(fd_.get(), &status) == 0) refuse_no_file(status.st_mode);
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw Error(Code::kWrongState, "another export is writing " + temporary_ +
                                         "; nothing was written. Name another file.");
    }
    if (::fstat(fd_.get(), &status) != 0) fail("could not look at " + temporary_, errno, kNoFile);
    // Between open and lock it may have been removed, or become another export's finished file.
  } while (!is_temporary(status));
}

// Early, since an export may take hours.
void ExportFile::reserve(std::uint64_t size_bytes) const {
  if (::ftruncate(fd_.get(), 0) != 0) fail("could not empty " + temporary_, errno, kNoFile);
  const int error = base::reserve(fd_.get(), size_bytes);
  if (error != ENOSPC && error != EDQUOT) return;  // reserved, or a file system without it
  fail("there is no room for " + path_, error, kNoFile);
}

void ExportFile::write(std::span<const std::byte> bytes, std::uint64_t at) {
  const base::Moved moved = base::write_at(fd_.get(), at, bytes);
  if (moved.error != 0) fail("could not write " + temporary_, moved.error, kNoFile);
}

void ExportFile::finish() {
  if (::fsync(fd_.get()) != 0) fail("could not sync " + temporary_, errno, kNoFile);
  give_name();
  finished_ = true;
  const int error = base::sync_folder(base::folder_above(path_));
  if (error == 0) return;
  fail("could not sync the folder above " + path_, error,
       "the file is there and whole, but a power failure may lose it");
}

void ExportFile::give_name() {
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0)
    return;
  // EINVAL: a file system that cannot refuse. A second name is never one that is there already.
  if (errno == EINVAL && ::link(temporary_.c_str(), path_.c_str()) == 0) {
    ::unlink(temporary_.c_str());
    return;
  }
  if (errno == EEXIST) refuse_existing();
  fail("could not rename " + temporary_, errno, kNoFile);
}
}  // namespace headrace::tools
