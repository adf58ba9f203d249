// SPDX-License-Identifier: Apache-2.0
// raw_drive.hpp: the drive without any work in between: the ceiling of an update phase.
//
// A swap file of the same size, made and written as the engine's, read, written, or rewritten
// record by record in order through the same drive: one transfer of a record's size per update slot
// in flight.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "async/conductor.hpp"
#include "headrace/settings.hpp"
#include "pinned/arena.hpp"
#include "swap/drive_on_path.hpp"
#include "swap/swap_file.hpp"

namespace headrace::tools {
struct RawDriveOptions {
  Settings settings = {};
  std::uint64_t file_bytes = 0;
  std::uint64_t extent_bytes = 0;
  swap::DriveMaker make_drive = &swap::make_drive_thread;
};

class RawDrive {
 public:
  // Makes the file and writes all of it.
  explicit RawDrive(const RawDriveOptions& options);

  struct Result {
    double seconds = 0;
    double cpu_seconds = 0;
    std::uint64_t bytes = 0;
    double bytes_per_second() const { return static_cast<double>(bytes) / seconds; }
  };
  // Moves the file's first `size_bytes` (whole pages). Throws headrace::Error kIo, kInterrupted.
  Result move(swap::IoKind kind, std::uint64_t size_bytes);
  // The first write of the whole file, which takes longer than those that follow.
  const Result& creation() const noexcept { return creation_; }
  // As an update does without its arithmetic: each of the first `size_bytes` is read, then written,
  // a slot's next read after its write. The result counts both ways.
  Result rewrite(std::uint64_t size_bytes);

  const char* queue_name() const { return drive_->queue_name(); }
  const swap::PathProbe& path() const { return path_; }

 private:
  // A transfer and the memory it always uses.
  struct Slot : swap::Transfer {
    RawDrive* raw = nullptr;
  };
  Result run(bool reads, bool writes, std::uint64_t size_bytes);
  void start(Slot& slot, swap::IoKind kind) noexcept;
  void start_next(Slot& slot) noexcept;
  static void ended(async::Work* work) noexcept;

  std::uint64_t extent_bytes_;
  swap::PathProbe path_;
  swap::RunDirectory directory_;
  swap::SwapFile file_;
  pinned::Arena arena_;
  std::unique_ptr<async::Conductor> conductor_;
  std::unique_ptr<swap::Drive> drive_;
  std::vector<Slot> slots_;

  // Of the move under way; conductor only.
  struct Start : async::Work {
    RawDrive* raw = nullptr;
  } start_;
  bool reads_ = false, writes_ = false;
  std::uint64_t next_ = 0, end_ = 0;
  std::uint32_t running_ = 0;
  int error_ = 0;
  bool short_ = false;
  std::atomic<bool> done_{false};
  Result creation_;
};
}  // namespace headrace::tools
