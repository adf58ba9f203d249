// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/files.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/error_text.hpp"
#include "base/file_space.hpp"
#include "base/sync_folder.hpp"
#include "base/units.hpp"
#include "base/whole_transfers.hpp"
#include "headrace/error.hpp"
#include "swap/refusal.hpp"

namespace headrace::checkpoint {
namespace {
namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, int error, const std::string& follows) {
  throw Error(swap::code_of(error),
              what + ": " + base::errno_text(error) + "; " + follows + "; " +
                  swap::what_helps(error, "folder"),
              error);
}
[[noreturn]] void fail(const Caller& caller, const std::string& what, int error) {
  fail(std::string(caller.call) + ": " + what, error, caller.follows);
}
// Below, a second descriptor costs more than it gains.
constexpr std::uint64_t kLeastDirectBytes = std::uint64_t{64} << 20;

base::UniqueFd open_folder(const std::string& path) {
  return base::UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Tries for longer than is_being_saved() holds the lock. Returns an errno: EWOULDBLOCK if another
// has it.
int lock(int folder) {
  for (int tries = 0; tries < 50; ++tries) {
    if (::flock(folder, LOCK_EX | LOCK_NB) == 0) return 0;
    if (errno != EWOULDBLOCK && errno != EINTR) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return EWOULDBLOCK;
}

// To a name that nothing has. NFS, CephFS and others cannot refuse one that is taken (EINVAL).
// There an empty folder that comes just now is replaced, and nothing else.
int rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}
}  // namespace

File::File(const Caller& caller, std::string path, base::UniqueFd fd, int mode)
    : caller_(caller), path_(std::move(path)), fd_(std::move(fd)) {
  if (size_bytes() < kLeastDirectBytes) return;
  direct_ = base::UniqueFd(::open(path_.c_str(), mode | O_DIRECT | O_CLOEXEC));
}

File File::create(const std::string& path, std::uint64_t size_bytes, const Caller& caller) {
  base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) fail(caller, "cannot create " + path, errno);
  swap::check_file_size_limit(path, size_bytes, "no checkpoint was made");
  // A full disk is found here, where the file system can reserve.
  int error = base::reserve(fd.get(), size_bytes);
  if (error == EOPNOTSUPP)
    error = ::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
  if (error != 0)
    fail(caller, "cannot reserve " + base::format_bytes(size_bytes) + " in " + path, error);
  return {caller, path, std::move(fd), O_RDWR};
}

File File::open_to_write(const std::string& path) {
  base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) fail(kSaving, "cannot open " + path, errno);
  return {kSaving, path, std::move(fd), O_RDWR};
}

File File::open(const std::string& path, const Caller& caller) {
  base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) {
    throw Error(Code::kNotFound,
                std::string(caller.call) + ": " + path +
                    " is not there, so this is no whole checkpoint; nothing was changed. Name a "
                    "folder that save_checkpoint() has made.",
                ENOENT);
  }
  if (!fd) fail(caller, "cannot open " + path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw Error(Code::kInvalidArgument, std::string(caller.call) + ": " + path +
                                            " is no regular file; " + caller.follows +
                                            ". Load another checkpoint.");
  }
  return {caller, path, std::move(fd), O_RDONLY};
}

bool is_there(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  fail(kSaving, "cannot look for " + path, errno);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail(kSaving, "cannot remove " + path, errno);
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail(kSaving, "cannot rename " + from + " to " + to, errno);
}

void File::refuse(const char* what, int error) const {
  fail(caller_, std::string("cannot ") + what + " " + path_, error);
}

void File::write(std::span<const std::byte> bytes, std::uint64_t at) {
  const base::Moved moved = base::write_at(fd_.get(), at, bytes);
  if (moved.error != 0) refuse("write", moved.error);
}

void File::write_around_cache(std::span<const std::byte> pages, std::uint64_t at) {
  if (direct_) {
    const base::Moved moved = base::write_at(direct_.get(), at, pages);
    if (moved.error == 0) return;
    if (moved.error != EINVAL) refuse("write", moved.error);
  }
  write(pages, at);  // they cannot go around it after all
  (void)::sync_file_range(fd_.get(), static_cast<off_t>(at), static_cast<off_t>(pages.size()),
                          SYNC_FILE_RANGE_WRITE);  // sync() reports errors
}

std::span<const std::byte> File::read_around_cache(std::uint64_t at, std::uint64_t size_bytes,
                                                   std::byte* memory) const {
  const std::uint64_t first_page = base::align_down(at, base::kIoAlignment);
  const std::uint64_t before = at - first_page;
  if (direct_) {
    const std::uint64_t end_page = base::align_up(at + size_bytes, base::kIoAlignment);
    const base::Moved moved =
        base::read_at(direct_.get(), first_page, {memory, end_page - first_page});
    // Fewer bytes, or an error behind them: the file ends within its last page.
    if (moved.size_bytes >= before + size_bytes) return {memory + before, size_bytes};
  }
  read({memory, size_bytes}, at);
  return {memory, size_bytes};
}

void File::read(std::span<std::byte> bytes, std::uint64_t at) const {
  const base::Moved moved = base::read_at(fd_.get(), at, bytes);
  if (moved.error != 0) refuse("read", moved.error);
  if (moved.size_bytes == bytes.size()) return;
  throw Error(Code::kCorrupt, std::string(caller_.call) + ": " + path_ + " ends at byte " +
                                  std::to_string(at + moved.size_bytes) +
                                  ", before its last tensor; load another checkpoint");
}

std::uint64_t File::size_bytes() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) refuse("stat", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::sync() {
  if (::fsync(fd_.get()) != 0) refuse("sync", errno);
}

std::string text_in(const File& file, std::uint64_t most_bytes) {
  const std::uint64_t bytes = file.size_bytes();
  if (bytes > most_bytes) {
    throw Error(Code::kCorrupt, file.path() + " has " + base::format_bytes(bytes) +
                                    ", and no such file has more than " +
                                    base::format_bytes(most_bytes) +
                                    "; it was not read. Name another checkpoint or model.");
  }
  std::string text(bytes, '\0');
  file.read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

void write_file(const std::string& path, std::span<const std::byte> bytes, const Caller& caller) {
  File file = File::create(path, bytes.size(), caller);
  file.write(bytes, 0);
  file.sync();
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string temporary_of(const std::string& directory) {
  return without_slashes(directory) + kTemporaryEnd;
}

bool is_being_saved(const std::string& temporary) {
  const base::UniqueFd folder = open_folder(temporary);
  return folder && ::flock(folder.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

namespace {
// In a folder while it is written, so that no folder of somebody else's is taken for one.
constexpr const char* kUnfinishedName = ".unfinished";

// Whether the open folder is the one of that name, and not one that was removed.
bool has_name(int folder, const std::string& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(folder, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

// What a save or a conversion writes to its folder.
bool is_of_a_save(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code unknown;
  if (entry.is_directory(unknown)) return name == "zero";
  for (const char* const end : {".safetensors", ".json", ".bin", ".pt"})
    if (name.ends_with(end)) return true;
  return name == kUnfinishedName || name.starts_with("token.") || name.starts_with("checksums.") ||
         name.starts_with("written.") || name.starts_with("failed.");
}

// All but the mark. Returns an errno, as the next does.
int remove_contents(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename() == kUnfinishedName) continue;
    fs::remove_all(at->path(), error);
    if (error) break;
  }
  return error.value() == ENOENT ? 0 : error.value();
}

// The mark goes last, so that whoever is killed here leaves a folder that the next save removes.
// Where another rank has left its note just then, the mark comes again.
int remove_unfinished(const std::string& folder) {
  const std::string mark = folder + "/" + kUnfinishedName;
  int error = 0;
  for (int tries = 0; tries < 3; ++tries) {
    if (error = remove_contents(folder); error != 0) return error;
    ::unlinkat(AT_FDCWD, mark.c_str(), 0);
    if (::unlinkat(AT_FDCWD, folder.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return 0;
    error = errno;
    if (error != ENOTEMPTY && error != EEXIST) return error;
    (void)base::UniqueFd(::open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  }
  return error;
}
}  // namespace

NewFolder::NewFolder(const std::string& directory, const Caller& caller)
    : caller_(caller), directory_(without_slashes(directory)), path_(temporary_of(directory)) {
  const std::string call = std::string(caller.call) + ": ";
  std::error_code ignored;
  if (directory_.empty() || directory_.ends_with(kTemporaryEnd)) {
    throw Error(Code::kInvalidArgument,
                call + "'" + directory_ + "' is no name for a checkpoint" +
                    (directory_.empty() ? "" : ", since unfinished ones end in .tmp") +
                    "; nothing was written. Name a new folder.");
  }
  if (fs::exists(fs::symlink_status(directory_, ignored))) {
    throw Error(Code::kInvalidArgument,
                call + directory_ + " exists; nothing was written. Name a new folder.");
  }
  remove_dead();
  if (::mkdir(path_.c_str(), 0777) != 0) {
    if (errno == EEXIST) refuse_another_save();
    refuse("create " + path_, errno);
  }
  fd_ = open_folder(path_);
  if (!fd_) refuse("open " + path_, errno);
  // Another save may have taken the new folder for a dead one before this.
  take_lock(fd_.get());
  write_file(path_ + "/" + kUnfinishedName, {}, caller_);
}

// The lock's holder before may have removed the folder.
void NewFolder::take_lock(int folder) const {
  const int error = lock(folder);
  if (error != 0 && error != EWOULDBLOCK) {
    ::unlinkat(AT_FDCWD, path_.c_str(), AT_REMOVEDIR);  // nobody saves here: if empty, it is ours
    refuse("lock " + path_, error);
  }
  if (error != 0 || !has_name(folder, path_)) refuse_another_save();
}

// A folder whose lock nobody holds: its save is dead.
void NewFolder::remove_dead() {
  const base::UniqueFd old = open_folder(path_);
  if (!old && errno == ENOENT) return;
  if (!old && (errno == ENOTDIR || errno == ELOOP)) {
    throw Error(Code::kInvalidArgument,
                std::string(caller_.call) + ": " + path_ +
                    " is no folder; nothing was removed or written. Move it, or name another "
                    "folder.");
  }
  if (!old) refuse("open " + path_, errno);
  take_lock(old.get());
  const bool marked = is_there(path_ + "/" + kUnfinishedName);
  std::error_code error;
  for (fs::directory_iterator at(path_, error), end; !error && at != end; at.increment(error)) {
    if (marked && is_of_a_save(*at)) continue;
    throw Error(Code::kInvalidArgument,
                std::string(caller_.call) + ": " + path_ + " has " +
                    base::quoted_name(at->path().filename().string()) +
                    ", which no save has written; nothing was removed or written. Move it, or "
                    "name another folder.");
  }
  // What cannot be listed may be anybody's.
  if (error) refuse("list " + path_, error.value());
  if (const int kept = remove_unfinished(path_); kept != 0) refuse("remove " + path_, kept);
}

void NewFolder::refuse_another_save() const {
  throw Error(Code::kWrongState, std::string(caller_.call) + ": another save is writing " + path_ +
                                     "; nothing was written. Name another folder.");
}

void NewFolder::refuse(const std::string& what, int error) const {
  fail(caller_, "cannot " + what, error);
}

NewFolder::~NewFolder() {
  if (!finished_) (void)remove_unfinished(path_);  // the next save removes what is left
}

void NewFolder::finish() {
  // EINVAL: a file system that knows no sync of a folder.
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) refuse("sync " + path_, errno);
  if (const int error = rename_to_new(path_, directory_); error != 0)
    refuse("rename " + path_ + " to " + directory_, error);
  finished_ = true;
  (void)::unlink((directory_ + "/" + kUnfinishedName).c_str());  // no harm if it stays
  if (const int error = base::sync_folder(base::folder_above(directory_)); error != 0) {
    fail(std::string(caller_.call) + ": cannot sync the folder above " + directory_, error,
         "the checkpoint is there, but a power failure may lose it");
  }
}

void name_latest(const std::string& directory, const std::string& file, const std::string& text,
                 const Caller& caller) {
  const std::string path = without_slashes(directory), folder = base::folder_above(path);
  const std::string latest = folder + "/" + file, temporary = latest + ".tmp";
  const std::string follows =
      "the checkpoint " + path + " is there, and " + file + " names the one before";
  std::error_code ignored;
  fs::remove(temporary, ignored);
  write_file(temporary, std::as_bytes(std::span(text)), {caller.call, follows.c_str()});
  int error = ::rename(temporary.c_str(), latest.c_str()) == 0 ? 0 : errno;
  if (error == 0) error = base::sync_folder(folder);
  if (error != 0) fail(std::string(caller.call) + ": cannot write " + latest, error, follows);
}

void name_latest(const std::string& directory) {
  name_latest(directory, kLatestName,
              fs::path(without_slashes(directory)).filename().string() + "\n", kSaving);
}

std::string folder_of(const std::string& directory) {
  std::error_code ignored;
  const std::string latest = directory + "/" + kLatestName;
  if (fs::exists(directory + "/manifest.json", ignored) || !fs::exists(latest, ignored))
    return directory;
  std::string name = text_in(File::open(latest), 4096);
  if (name.ends_with('\n')) name.pop_back();
  if (!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos)
    return directory + "/" + name;
  throw Error(Code::kCorrupt, "load_checkpoint: " + latest +
                                  " does not name a folder beside it; nothing was changed. Name "
                                  "the checkpoint's own folder.");
}
}  // namespace headrace::checkpoint
