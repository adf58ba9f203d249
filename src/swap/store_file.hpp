// SPDX-License-Identifier: Apache-2.0
// store_file.hpp: the files of a store. They outlive their run, and only their user removes them.
//
//   <nvme_path>/headrace-<uid>/store-<name>/rank<r>.<drive>.store
//
// A file's lock belongs to the open file that the drive's queue works on. A killed process may
// leave writes in the kernel. These hold the open file, and so the lock, until they have ended: no
// successor opens a file that late writes may still reach. Forked children close it.
//
// While it is made, a file is called ".new-rank<r>.<drive>.store".
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "headrace/log.hpp"
#include "swap/drive_file.hpp"
#include "swap/swap_file.hpp"

namespace headrace::swap {
struct StoreName {
  std::string store;
  std::uint32_t rank = 0, drive = 0;
  bool being_made = false;
  std::string directory() const { return "store-" + store; }
  std::string file() const;
};

// A reader needs no right to write, changes no permissions, and shares the lock with others.
enum class StoreUse { kWrite, kRead };

// Of a file that create() finds under its name.
enum class Existing : std::uint8_t { kRefuse, kReplace };

class StoreFile : public DriveFile {
 public:
  // Opens a file and takes its lock. It waits up to ten seconds for what a dead process, or one
  // that cannot be seen from here, still holds, and about a second for a live one. Throws
  //   kNotFound     no such store, or no file of this rank and drive in it
  //   kWrongState   another engine uses it; names the process if it is known
  //   kCorrupt      shorter than a page
  //   kIo           not a file of this user's that may be written to, or read (errno)
  //   kNoSpace      larger than this process may write
  //   kUnsupported  the file system has no locks
  static std::unique_ptr<StoreFile> open(const PathProbe& path, const StoreName& name,
                                         StoreUse use = StoreUse::kWrite);
  // Takes the lock of a file whatever it holds, to look at it or to remove it. Throws as open(),
  // but for kCorrupt and kNoSpace.
  static std::unique_ptr<StoreFile> hold(const PathProbe& path, const StoreName& name,
                                         StoreUse use = StoreUse::kWrite);
  // Makes a file of this size under a temporary name, with its lock held and all its blocks
  // reserved, and removes what a dead run left under that name, and dead runs. Throws as open() and
  // SwapFile, and leaves nothing behind. A file that has the name already is refused (kWrongState),
  // or stays until publish() replaces it, and nobody can open it meanwhile.
  static std::unique_ptr<StoreFile> create(const PathProbe& path, const StoreName& name,
                                           std::uint64_t size_bytes, Existing existing,
                                           const LogSink& log);
  // Removes a file that was created and not published, and directories that are empty then.
  ~StoreFile() override;

  // Gives a created file its name, durably. The caller has written and synced the contents.
  void publish();
  // Removes a file that open() or hold() gave. Throws kIo.
  void remove();
  const StoreName& name() const noexcept { return name_; }

 private:
  StoreFile(const PathProbe& path, StoreName name, std::uint64_t size_bytes);
  void make(const PathProbe& path, Existing existing, const LogSink& log);
  void make_place();
  void remove_unpublished();
  std::string directory_path() const { return user_path_ + "/" + name_.directory(); }
  StoreName temporary_name() const;

  StoreName name_;
  std::string nvme_path_, user_path_;
  base::UniqueFd user_directory_, directory_;  // from create() to publish()
  base::UniqueFd replaced_;                    // the file that publish() replaces, locked
  bool made_ = false;                          // the file with the temporary name is this one
  int maker_pid_ = 0;                          // a forked child removes nothing
};

// All files of a store below a path, of every rank, those that are being made too. Takes no lock.
// Throws kIo if a directory of that name is not this user's, or cannot be listed.
std::vector<StoreName> files_of_store(const PathProbe& path, const std::string& store);
// The numbers of the drives whose files of that store and rank lie below a path, ascending. Throws
// as well.
std::vector<std::uint32_t> drives_in_store(const PathProbe& path, const std::string& store,
                                           std::uint32_t rank);
// The lowest other rank that has a file of that store there. Throws as well.
std::optional<std::uint32_t> another_rank_in_store(const PathProbe& path, const std::string& store,
                                                   std::uint32_t rank);
// The names of this user's stores below a path, ascending, also of those that cannot be opened.
// Throws kIo as well.
std::vector<std::string> stores_at(const std::string& nvme_path);
}  // namespace headrace::swap
