// SPDX-License-Identifier: Apache-2.0
// files.hpp: the files of a checkpoint: whole transfers, and a folder that appears at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::checkpoint {
// Named in errors: the call, and what follows for its user.
struct Caller {
  const char* call;
  const char* follows;
};
inline constexpr Caller kSaving{"save_checkpoint",
                                "no checkpoint was made, the engine is unchanged"};

inline constexpr Caller kLoading{"load_checkpoint", "the checkpoint could not be read"};

// Threads: one at a time. Every error names the path and what helps.
class File {
 public:
  static File create(const std::string& path, std::uint64_t size_bytes = 0,
                     const Caller& caller = kSaving);
  // kNotFound if it is not there, kInvalidArgument if it is no regular file.
  static File open(const std::string& path, const Caller& caller = kLoading);
  // One that another rank has created.
  static File open_to_write(const std::string& path);
  // Writes and reads of different bytes may run on several threads.
  void write(std::span<const std::byte> bytes, std::uint64_t at);
  // Throws kCorrupt where the file ends before.
  void read(std::span<std::byte> bytes, std::uint64_t at) const;
  // Whole pages, which begin one in memory too. Those of a large file go around the page cache, if
  // the file system can do that.
  void write_around_cache(std::span<const std::byte> pages, std::uint64_t at);
  // Into `memory`, aligned to pages, with room for all pages that have one of the bytes. Returns
  // the bytes.
  std::span<const std::byte> read_around_cache(std::uint64_t at, std::uint64_t size_bytes,
                                               std::byte* memory) const;
  std::uint64_t size_bytes() const;
  void sync();
  const std::string& path() const noexcept { return path_; }

 private:
  File(const Caller& caller, std::string path, base::UniqueFd fd, int mode);
  [[noreturn]] void refuse(const char* what, int error) const;
  Caller caller_;
  std::string path_;
  base::UniqueFd fd_;
  base::UniqueFd direct_;  // with O_DIRECT; none for a small file
};
// Throws kCorrupt if the file has more than `most_bytes`.
std::string text_in(const File& file, std::uint64_t most_bytes = std::uint64_t{1} << 30);
// A new file with these bytes, synced.
void write_file(const std::string& path, std::span<const std::byte> bytes,
                const Caller& caller = kSaving);

// In the folder that a save is writing.
bool is_there(const std::string& path);
void remove_file(const std::string& path);  // if it is there
void rename_file(const std::string& from, const std::string& to);

// `directory`, or the checkpoint in it that its file `latest` names.
std::string folder_of(const std::string& directory);
inline constexpr const char* kLatestName = "latest";
// Makes `latest`, beside the finished checkpoint `directory`, name it: writes `text`, the name and
// what ends it, to the file.
void name_latest(const std::string& directory, const std::string& latest, const std::string& text,
                 const Caller& caller);
void name_latest(const std::string& directory);
std::string without_slashes(std::string path);           // at its end
std::string temporary_of(const std::string& directory);  // "<directory>.tmp"
inline constexpr const char* kTemporaryEnd = ".tmp";

// Whether a save on this machine, or on one whose locks are seen here, is writing the folder. Holds
// its lock for an instant.
bool is_being_saved(const std::string& temporary);

// The folder temporary_of(directory), locked while it is written. The destructor removes it unless
// it was finished.
class NewFolder {
 public:
  explicit NewFolder(const std::string& directory, const Caller& caller = kSaving);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  const std::string& path() const noexcept { return path_; }
  void finish();

 private:
  void remove_dead();
  void take_lock(int folder) const;
  [[noreturn]] void refuse(const std::string& what, int error) const;
  [[noreturn]] void refuse_another_save() const;
  Caller caller_;
  std::string directory_, path_;
  base::UniqueFd fd_;
  bool finished_ = false;
};
}  // namespace headrace::checkpoint
