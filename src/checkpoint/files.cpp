// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/files.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "base/error_text.hpp"
#include "base/whole_transfers.hpp"
#include "headrace/error.hpp"
#include "swap/refusal.hpp"

namespace headrace::checkpoint {
namespace {
namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, int error, const char* follows) {
  throw Error(
      swap::code_of(error),
      what + ": " + base::errno_text(error) + "; " + follows + "; " + swap::what_helps(error),
      error);
}
constexpr const char* kNotSaved = "no checkpoint was made, the engine is unchanged";
constexpr const char* kNotRead = "the checkpoint could not be read";

base::UniqueFd open_folder(const std::string& path) {
  return base::UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}
}  // namespace

File File::create(const std::string& path) {
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) fail("save_checkpoint: cannot create " + path, errno, kNotSaved);
  return {path, std::move(fd)};
}

File File::open(const std::string& path) {
  base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) {
    throw Error(Code::kNotFound,
                "load_checkpoint: " + path +
                    " is not there, so this is no whole checkpoint; nothing was changed. Name a "
                    "folder that save_checkpoint() has made.",
                ENOENT);
  }
  if (!fd) fail("load_checkpoint: cannot open " + path, errno, kNotRead);
  return {path, std::move(fd)};
}

void File::write(std::span<const std::byte> bytes, std::uint64_t at) {
  const base::Moved moved = base::write_at(fd_.get(), at, bytes);
  if (moved.error != 0) fail("save_checkpoint: cannot write " + path_, moved.error, kNotSaved);
}

void File::read(std::span<std::byte> bytes, std::uint64_t at) const {
  const base::Moved moved = base::read_at(fd_.get(), at, bytes);
  if (moved.error != 0) fail("load_checkpoint: cannot read " + path_, moved.error, kNotRead);
  if (moved.size_bytes == bytes.size()) return;
  throw Error(Code::kCorrupt, "load_checkpoint: " + path_ + " ends at byte " +
                                  std::to_string(at + moved.size_bytes) +
                                  ", before its last tensor; load another checkpoint");
}

std::uint64_t File::size_bytes() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) fail("load_checkpoint: stat of " + path_, errno, kNotRead);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::sync() {
  if (::fsync(fd_.get()) != 0) fail("save_checkpoint: cannot sync " + path_, errno, kNotSaved);
}

NewFolder::NewFolder(std::string directory) : directory_(std::move(directory)) {
  while (directory_.size() > 1 && directory_.ends_with('/')) directory_.pop_back();
  path_ = directory_ + ".tmp";
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(directory_, ignored))) {
    throw Error(Code::kInvalidArgument, "save_checkpoint: " + directory_ +
                                            " exists; nothing was written. Name a new folder.");
  }
  // A lock that nobody holds: its save is dead.
  if (const base::UniqueFd old = open_folder(path_); old) {
    if (::flock(old.get(), LOCK_EX | LOCK_NB) != 0) {
      throw Error(Code::kWrongState, "save_checkpoint: another save is writing " + path_ +
                                         "; nothing was written. Name another folder.");
    }
    fs::remove_all(path_, ignored);
  }
  if (::mkdir(path_.c_str(), 0777) != 0)
    fail("save_checkpoint: cannot create " + path_, errno, kNotSaved);
  fd_ = open_folder(path_);
  if (!fd_ || ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0)
    fail("save_checkpoint: cannot lock " + path_, errno, kNotSaved);
}

NewFolder::~NewFolder() {
  if (finished_) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void NewFolder::finish() {
  if (::fsync(fd_.get()) != 0) fail("save_checkpoint: cannot sync " + path_, errno, kNotSaved);
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, directory_.c_str(), RENAME_NOREPLACE) != 0)
    fail("save_checkpoint: cannot rename " + path_ + " to " + directory_, errno, kNotSaved);
  finished_ = true;
  const fs::path above = fs::path(directory_).parent_path();
  const base::UniqueFd parent = open_folder(above.empty() ? "." : above.string());
  if (!parent || ::fsync(parent.get()) != 0) {
    fail("save_checkpoint: cannot sync the folder above " + directory_, errno,
         "the checkpoint is there, but a power failure may lose it");
  }
}
}  // namespace headrace::checkpoint
