// SPDX-License-Identifier: Apache-2.0
// target.hpp: the file on a drive that is measured: a scratch file that this program makes, or a
// file of the user's that is only read.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bench/measurement.hpp"
#include "bench/stamps.hpp"
#include "headrace/log.hpp"
#include "swap/swap_file.hpp"

namespace headrace::tools {
// Removed by its destructor, and by the next run of this user where this one is killed.
class Target {
 public:
  // A directory: a new file of `file_bytes` in a run's directory of its own; nothing that exists is
  // touched. A block device or a regular file: opened for reading alone, as much of it as
  // `file_bytes`. Throws headrace::Error: kNotFound, kIo, kInvalidArgument, kNoSpace.
  Target(const std::string& path, std::uint64_t file_bytes, LogSink log);

  int fd() const noexcept { return fd_; }
  const std::string& file_path() const noexcept { return file_path_; }
  std::uint64_t size_bytes() const noexcept { return facts_.file_bytes; }
  const MeasuredDrive& facts() const noexcept { return facts_; }
  PageMap& pages() noexcept { return *pages_; }
  const swap::PathProbe& probe() const noexcept { return probe_; }  // of a directory
  bool verifiable() const noexcept { return !facts_.read_only; }

 private:
  void open_existing(const std::string& path, std::uint64_t file_bytes);

  MeasuredDrive facts_;
  swap::PathProbe probe_;
  std::unique_ptr<swap::RunDirectory> directory_;
  std::unique_ptr<swap::SwapFile> file_;
  base::UniqueFd existing_;
  int fd_ = -1;
  std::string file_path_;
  std::unique_ptr<PageMap> pages_;
};

// Whether `path` is a directory, so that a file can be made in it. Throws kNotFound.
bool is_writable_target(const std::string& path);

// Beside the 5 % of a file system that stay free.
struct Room {
  std::uint64_t free_bytes = 0;
  std::uint64_t fits_bytes = 0;
};
// None where the file system does not say; making the file tells what is wrong then.
std::optional<Room> room_of(const std::string& path);
// Throws kNoSpace where as many files would not fit, naming what does.
void check_room(const std::string& path, std::uint64_t file_bytes, std::size_t files = 1);

// One directory or file, by whatever name. Throws kNotFound.
bool is_same_place(const std::string& a, const std::string& b);
// Of the directories in `paths`, those on the file system of `path`, in their order: they share its
// room and its drive. Throws kNotFound.
std::vector<std::string> sharing(const std::vector<std::string>& paths, const std::string& path);
}  // namespace headrace::tools
