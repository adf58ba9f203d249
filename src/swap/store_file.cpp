// SPDX-License-Identifier: Apache-2.0
#include "swap/store_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "swap/dead_runs.hpp"
#include "swap/refusal.hpp"
#include "swap/run_lock.hpp"
#include "swap/user_directory.hpp"

namespace headrace::swap {
namespace {
using base::UniqueFd;
constexpr std::string_view kStorePrefix = "store-";
// Rounds of kLockTries, 200 ms each.
constexpr int kRounds = 50, kRoundsWhileAlive = 5;

std::string what_helps_a_store(int sys_errno, StoreUse use) {
  switch (sys_errno) {
    case ENOENT:
      return "check headrace.nvme_paths and headrace.store";
    case EACCES:
    case EPERM:
      return use == StoreUse::kRead
                 ? "run as its owner, with the right to read it (ls -l)"
                 : "run as its owner, with the right to write to it (ls -l), or name another "
                   "headrace.store";
    case ELOOP:
    case ENOTDIR:
    case EISDIR:
      return "a store has no links and nothing in the place of a file or a directory; move that "
             "away, or name another headrace.store";
    default:
      return what_helps(sys_errno);
  }
}

[[noreturn]] void refuse(const std::string& what, const std::string& path, int sys_errno,
                         StoreUse use = StoreUse::kWrite) {
  throw Error(sys_errno == ENOENT ? Code::kNotFound : code_of(sys_errno),
              what + " " + path + ": " + base::errno_text(sys_errno) +
                  "; the store stays as it is; " + what_helps_a_store(sys_errno, use),
              sys_errno);
}

UniqueFd open_directory_at(const std::string& path) {
  UniqueFd directory(TEMP_FAILURE_RETRY(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!directory) refuse("could not open", path, errno);
  return directory;
}

// One of this user's; none where there is none.
UniqueFd find_directory(int parent, const std::string& name, const std::string& path) {
  int error = 0;
  UniqueFd directory = open_own_directory(parent, name, error);
  if (!directory && error != ENOENT) refuse("could not use", path, error);
  return directory;
}

// Removed meanwhile, a file or a link in a directory's place, or another user's.
bool is_no_store_of_ours(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == EPERM;
}

// The user's directory below a path.
UniqueFd find_user_directory(const std::string& nvme_path) {
  const std::string name = user_directory_name();
  return find_directory(open_directory_at(nvme_path).get(), name, nvme_path + "/" + name);
}

// Whose lock it is, as far as that can be seen from here.
std::string text_of_holder(int pid) {
  if (pid == 0) return "another process";
  if (pid == static_cast<int>(::getpid())) return "another engine of this process";
  return "another process, " + std::to_string(pid);
}

// A dead process holds it until its last writes have ended; a live one is hardly waited for.
void take_lock(int file, const std::string& path, StoreUse use = StoreUse::kWrite) {
  const auto lock = use == StoreUse::kRead ? &lock_shared : &lock_exclusive;
  int holder = 0;
  for (int round = 0, alive = 0; round < kRounds && alive < kRoundsWhileAlive; ++round) {
    if (lock(file, path, kLockTries) == LockOutcome::kTaken) return;
    holder = lock_holder(file);
    if (process_runs(holder)) ++alive;
  }
  throw Error(Code::kWrongState,
              path + " is in use: " + text_of_holder(holder) +
                  " holds its lock; nothing was written; wait until that has ended, or name "
                  "another headrace.store");
}

void make_private(int fd, const struct stat& status, mode_t mode) {
  if ((status.st_mode & 0077) != 0) ::fchmod(fd, mode);
}

void check_file(const std::string& path, const struct stat& status) {
  if (status.st_uid != ::geteuid()) refuse("another user owns", path, EPERM);
  if (S_ISLNK(status.st_mode)) refuse("could not open", path, ELOOP);
  if (S_ISDIR(status.st_mode)) refuse("could not open", path, EISDIR);
  if (S_ISREG(status.st_mode)) return;
  throw Error(Code::kIo, path +
                             " is not a regular file; the store stays as it is; move it away, or "
                             "name another headrace.store");
}

// Opens a store's file and takes its lock. Returns its size; no value if there is no such file.
std::optional<std::uint64_t> open_locked(UniqueFd& file, int directory, const std::string& name,
                                         const std::string& path, bool direct,
                                         StoreUse use = StoreUse::kWrite) {
  const int access = use == StoreUse::kRead ? O_RDONLY : O_RDWR;
  while (true) {
    struct stat status {};
    const bool there = ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there && errno == ENOENT) return std::nullopt;
    if (!there) refuse("could not look at", path, errno);
    check_file(path, status);
    const int flags = access | O_NOFOLLOW | O_CLOEXEC | (direct ? O_DIRECT : 0);
    file.reset(TEMP_FAILURE_RETRY(::openat(directory, name.c_str(), flags)));
    if (!file && errno == ENOENT) return std::nullopt;
    if (!file) refuse("could not open", path, errno, use);
    take_lock(file.get(), path, use);
    struct stat named {};
    if (::fstat(file.get(), &status) != 0) refuse("could not look at", path, errno);
    const bool still = ::fstatat(directory, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                       named.st_ino == status.st_ino && named.st_dev == status.st_dev;
    if (!still) continue;  // removed, replaced or published between open and lock
    if (use == StoreUse::kWrite) make_private(file.get(), status, 0600);
    return static_cast<std::uint64_t>(status.st_size);
  }
}

void sync_to_drive(int fd, const std::string& path) {
  if (::fsync(fd) != 0) refuse("could not sync", path, errno);
}

void sync_directory(int fd, const std::string& path) {
  // EINVAL: a file system that knows no sync of a directory. Nothing has failed.
  if (::fsync(fd) != 0 && errno != EINVAL) refuse("could not sync", path, errno);
}

// Whose file it is; no value if it is not named as one.
std::optional<StoreName> name_of_file(const std::string& store, const std::string& file) {
  constexpr std::string_view kRank = "rank", kNew = kBeingMade;
  StoreName name{store, 0, 0, file.starts_with(kNew)};
  const std::size_t begin = name.being_made ? kNew.size() : 0;
  if (file.compare(begin, kRank.size(), kRank) != 0) return std::nullopt;
  const char* const end = file.data() + file.size();
  const char* const dot = std::from_chars(file.data() + begin + kRank.size(), end, name.rank).ptr;
  if (dot != end) std::from_chars(dot + 1, end, name.drive);
  return name.file() == file ? std::optional(name) : std::nullopt;
}
}  // namespace

std::string StoreName::file() const {
  return (being_made ? kBeingMade : "") + ("rank" + std::to_string(rank)) + "." +
         std::to_string(drive) + ".store";
}

StoreFile::StoreFile(const PathProbe& path, StoreName name, std::uint64_t size_bytes)
    : DriveFile({}, size_bytes),
      name_(std::move(name)),
      nvme_path_(path.path),
      user_path_(path.path + "/" + user_directory_name()) {
  HEADRACE_CHECK(!name_.store.empty() && name_.store.find('/') == std::string::npos,
                 "a store's name is part of a file's");
  path_ = directory_path() + "/" + name_.file();
  // Before they hold anything, as the lock belongs to what they hold.
  close_in_forked_child(file_);
  close_in_forked_child(replaced_);
}

StoreName StoreFile::temporary_name() const {
  return {name_.store, name_.rank, name_.drive, /*being_made=*/true};
}

std::unique_ptr<StoreFile> StoreFile::hold(const PathProbe& path, const StoreName& name,
                                           StoreUse use) {
  std::unique_ptr<StoreFile> store(new StoreFile(path, name, 0));
  const UniqueFd user = find_user_directory(path.path);
  const UniqueFd directory =
      user ? find_directory(user.get(), name.directory(), store->directory_path()) : UniqueFd();
  if (!directory) refuse("could not open", store->directory_path(), ENOENT);
  struct stat status {};
  if (use == StoreUse::kWrite && ::fstat(directory.get(), &status) == 0)
    make_private(directory.get(), status, 0700);
  const std::optional<std::uint64_t> size =
      open_locked(store->file_, directory.get(), name.file(), store->path_, path.direct, use);
  if (!size) refuse("could not open", store->path_, ENOENT);
  store->size_bytes_ = *size;
  return store;
}

std::unique_ptr<StoreFile> StoreFile::open(const PathProbe& path, const StoreName& name,
                                           StoreUse use) {
  std::unique_ptr<StoreFile> store = hold(path, name, use);
  const std::uint64_t size = store->size_bytes_;
  if (size < base::kIoAlignment) {
    throw Error(Code::kCorrupt, store->path_ + " was truncated: it has " + std::to_string(size) +
                                    " bytes, and its header alone has " +
                                    std::to_string(base::kIoAlignment) +
                                    "; the store stays as it is; restore it from a copy, or name "
                                    "another headrace.store");
  }
  if (use == StoreUse::kWrite) check_file_size_limit(store->path_, size);
  store->size_bytes_ = base::align_down(size, base::kIoAlignment);
  return store;
}

void StoreFile::remove() {
  if (::unlink(path_.c_str()) == 0) return;
  throw Error(Code::kIo,
              "could not remove " + path_ + ": " + base::errno_text(errno) +
                  "; what was removed before it is gone, so the store cannot be used; "
                  "remove its folder by hand",
              errno);
}

std::unique_ptr<StoreFile> StoreFile::create(const PathProbe& path, const StoreName& name,
                                             std::uint64_t size_bytes, Existing existing,
                                             const LogSink& log) {
  std::unique_ptr<StoreFile> store(new StoreFile(path, name, size_bytes));
  store->make(path, existing, log);
  return store;
}

// Stores are made as runs are: under the lock on the user's directory, until this file's own is
// held. The blocks come after it, since they may take long.
void StoreFile::make(const PathProbe& path, Existing existing, const LogSink& log) {
  const UniqueFd parent = open_directory_at(nvme_path_);
  user_directory_ = open_user_directory(parent.get(), user_directory_name(), user_path_);
  maker_pid_ = static_cast<int>(::getpid());
  reclaim_dead_runs(user_directory_.get(), user_path_, base::sink_or_stderr(log));
  make_place();
  const std::string temporary = temporary_name().file();
  if (open_locked(replaced_, directory_.get(), name_.file(), path_, path.direct) &&
      existing == Existing::kRefuse) {
    throw Error(Code::kWrongState,
                path_ +
                    " was made by another engine since this one looked for it; nothing was "
                    "written; start again, and this run continues from that store");
  }
  if (UniqueFd left;
      open_locked(left, directory_.get(), temporary, directory_path() + "/" + temporary, false)) {
    ::unlinkat(directory_.get(), temporary.c_str(), 0);
  }
  make_file(file_, directory_.get(), temporary, path_, size_bytes_, path.direct);
  made_ = true;
  take_lock(file_.get(), path_);
  ::flock(user_directory_.get(), LOCK_UN);  // said aloud: a child forked meanwhile shares it
  reserve_blocks(file_.get(), path_, size_bytes_);
}

void StoreFile::make_place() {
  const std::string directory = name_.directory();
  if (::mkdirat(user_directory_.get(), directory.c_str(), 0700) != 0 && errno != EEXIST)
    refuse("could not make", directory_path(), errno);
  directory_ = find_directory(user_directory_.get(), directory, directory_path());
  struct stat status {};
  if (!directory_ || ::fstat(directory_.get(), &status) != 0)
    refuse("could not use", directory_path(), errno);
  make_private(directory_.get(), status, 0700);
}

void StoreFile::publish() {
  HEADRACE_CHECK(made_, "a file is published once, by who made it");
  sync_to_drive(file_.get(), path_);
  const std::string from = temporary_name().file(), to = name_.file();
  if (::renameat(directory_.get(), from.c_str(), directory_.get(), to.c_str()) != 0)
    refuse("could not rename", directory_path() + "/" + from, errno);
  made_ = false;
  maker_pid_ = 0;
  // Upwards: a name counts only once the directories on the way to it are there.
  sync_directory(directory_.get(), directory_path());
  sync_directory(user_directory_.get(), user_path_);
  sync_directory(open_directory_at(nvme_path_).get(), nvme_path_);
  replaced_.reset();
  directory_.reset();
  user_directory_.reset();
}

StoreFile::~StoreFile() {
  forget_in_forked_child(file_);
  forget_in_forked_child(replaced_);
  if (static_cast<int>(::getpid()) == maker_pid_) remove_unpublished();
}

void StoreFile::remove_unpublished() {
  try {
    if (made_) ::unlinkat(directory_.get(), temporary_name().file().c_str(), 0);
    if (lock_exclusive(user_directory_.get(), user_path_, kLockTries) != LockOutcome::kTaken)
      return;  // somebody is making something there
    ::unlinkat(user_directory_.get(), name_.directory().c_str(), AT_REMOVEDIR);
    remove_user_directory(user_directory_.get(), user_path_);
  } catch (...) {
    // No locks, or no memory: the next create() removes what is left.
  }
}

std::vector<StoreName> files_of_store(const PathProbe& path, const std::string& store) {
  std::vector<StoreName> files;
  const UniqueFd user = find_user_directory(path.path);
  const std::string name = StoreName{store}.directory();
  const std::string directory_path = path.path + "/" + user_directory_name() + "/" + name;
  const UniqueFd directory = user ? find_directory(user.get(), name, directory_path) : UniqueFd();
  if (!directory) return files;
  int error = 0;
  const std::vector<std::string> names = names_in(directory.get(), error);
  // A file that was passed over would be taken for lost, and its store for none.
  if (error != 0) refuse("could not list", directory_path, error);
  for (const std::string& file : names) {
    if (const auto found = name_of_file(store, file)) files.push_back(*found);
  }
  return files;
}

std::vector<std::uint32_t> drives_in_store(const PathProbe& path, const std::string& store,
                                           std::uint32_t rank) {
  std::vector<std::uint32_t> drives;
  for (const StoreName& name : files_of_store(path, store)) {
    if (name.rank == rank && !name.being_made) drives.push_back(name.drive);
  }
  std::ranges::sort(drives);
  return drives;
}

std::optional<std::uint32_t> another_rank_in_store(const PathProbe& path, const std::string& store,
                                                   std::uint32_t rank) {
  std::optional<std::uint32_t> lowest;
  for (const StoreName& name : files_of_store(path, store)) {
    if (name.rank != rank && !name.being_made)
      lowest = std::min(name.rank, lowest.value_or(name.rank));
  }
  return lowest;
}

std::vector<std::string> stores_at(const std::string& nvme_path) {
  std::vector<std::string> stores;
  const UniqueFd user = find_user_directory(nvme_path);
  if (!user) return stores;
  int listing = 0;
  const std::vector<std::string> names = names_in(user.get(), listing);
  if (listing != 0)
    refuse("could not list", nvme_path + "/" + user_directory_name(), listing, StoreUse::kRead);
  for (const std::string& name : names) {
    int error = 0;
    if (!name.starts_with(kStorePrefix)) continue;
    // One that cannot be opened now is still there.
    if (open_own_directory(user.get(), name, error) || !is_no_store_of_ours(error))
      stores.push_back(name.substr(kStorePrefix.size()));
  }
  std::ranges::sort(stores);
  return stores;
}
}  // namespace headrace::swap
