// SPDX-License-Identifier: Apache-2.0
// swap_tier.hpp: the NVMe tier for coroutines. It reads and writes whole extents, or throws an
// exception that names the tensor, the file, the place, the bytes requested and moved, and the
// errno.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "async/task.hpp"
#include "headrace/settings.hpp"
#include "swap/drive_on_path.hpp"
#include "swap/extents.hpp"
#include "swap/record.hpp"

namespace headrace::swap {
// The purpose of a transfer; it becomes text only in an error message.
struct Subject {
  const char* action = "";            // "swap in", "swap in state of", ...
  const std::string* name = nullptr;  // the tile's first parameter
  std::uint64_t tile = 0;
  static constexpr std::uint64_t kNoTile = ~std::uint64_t{0};
  std::string text() const;
};

struct SwapTierOptions : DriveOnPathOptions {
  std::vector<PathProbe> paths;            // probed earlier, one per drive
  std::vector<std::uint64_t> drive_bytes;  // size of each swap file; 0: there is none
  // The files of a store, one per drive, to use in place of swap files of the tier's own.
  std::vector<std::unique_ptr<DriveFile>> files;
  // Called on the conductor with the error of the first transfer that never completed, before the
  // waiting coroutine gets its memory back.
  std::function<void(const std::string& cause)> on_stall;
};

// How the drives of a tier do I/O.
struct QueueInUse {
  std::string name, reason;  // of the first drive: IoQueue::name(), ChosenIoQueue::reason
  Registered registered;     // on all drives; with the first refusal
  bool direct = true;        // all of them, with O_DIRECT
};

// Threads: on the conductor, except where noted. While no transfer runs, the starting thread
// constructs and destroys it, and calls continue_run(), allocate() and take().
class SwapTier {
 public:
  // Creates run directories and files (in full), and starts the drives. After an exception, nothing
  // is left behind.
  SwapTier(async::Conductor& conductor, SwapTierOptions options);
  ~SwapTier();

  const RunBytes& run() const noexcept { return run_; }
  // Of a store that an earlier run made: its id takes the place of this run's.
  void continue_run(const RunBytes& store) noexcept { run_ = store; }
  // Throws kNoSpace if the plan and the tier disagree.
  Extent allocate(std::uint32_t drive, std::uint64_t size_bytes);
  // Takes an extent of a store that was written earlier. Throws kCorrupt if it cannot be one.
  void take(const Extent& extent);
  // Transfers a whole extent; `into`/`from` have its size. Repeats a failed read once, unless the
  // deadline ended it. The tier does not check checksums, so it does not repeat a read for one.
  // After a transfer that never completed, every other one fails with kIoStalled: the kernel may
  // still write to the memory of the lost one, which may have another owner by then.
  async::Task<> read(Extent extent, std::span<std::byte> into, Priority priority, Subject subject);
  // Repeats a failed write once on another extent; `extent` then names that one. If that fails too,
  // the error is of the second extent, and `extent` is as it was.
  async::Task<> write(Extent& extent, std::span<const std::byte> from, Priority priority,
                      Subject subject);
  // As write(), but for bytes that have one place: throws after the first failure.
  async::Task<> write_in_place(Extent extent, std::span<const std::byte> from, Priority priority,
                               Subject subject);
  // Syncs the files of all drives at the same time: what was written to them by transfers that
  // ended before this call survives a loss of power. Waits for all of them, and throws the error of
  // the first that failed. That is final: no later sync() of this tier succeeds.
  async::Task<> sync(Priority priority = Priority::kDemand);

  // ---- while no transfer runs, the thread that made it ----
  // Ends the drives, whose queues hold the memory that is registered with them. Their files remain.
  // Only counters and start_drives() may follow.
  void end_drives();
  void start_drives();  // those that ended; throws as the constructor, and may be repeated

  // ---- any thread ----
  DriveCounters totals() const noexcept;
  DriveCounters counters(std::size_t drive) const noexcept;  // zeros if nothing is stored there
  QueueInUse queue() const;
  // Whether a drive has given a transfer up.
  bool stalled() const noexcept;
  std::string place(const Extent& extent) const;  // "FILE at 73400320"
  const std::string& file_path(std::uint32_t drive) const;

  // ---- conductor ----
  // Throws kIoStalled, with a text that starts with `call`, if a transfer never completed: memory
  // leased since then may be its memory.
  void refuse_after_stall(std::string_view call) const;

 private:
  // A drive, and the owners of the extents of its file.
  struct OwnDrive;
  async::Task<bool> try_write(const Extent& extent, std::span<const std::byte> from,
                              Priority priority, const Subject& subject, int& error,
                              std::uint64_t& done);
  async::Task<> sync_drive(OwnDrive& own, Priority priority);
  [[noreturn]] void fail(const Extent& extent, const Subject& subject, IoKind kind,
                         std::uint64_t done, int error, const char* more);
  // Adds to `text` what helps against `error`, and notes a stall.
  [[noreturn]] void end_with(std::string text, int error, const OwnDrive& own);
  static std::string what_helps_there(const OwnDrive& own, int error);
  async::Conductor& conductor_;
  DriveOnPathOptions options_;
  QueueInUse queue_;  // of drives that have ended
  RunBytes run_{};
  std::function<void(const std::string& cause)> on_stall_;
  std::string stall_;  // the error of the first transfer that never completed
  std::vector<std::unique_ptr<OwnDrive>> drives_;
  std::atomic<std::uint64_t> repeats_{0};
};
}  // namespace headrace::swap
