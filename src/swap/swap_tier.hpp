// SPDX-License-Identifier: Apache-2.0
// swap_tier.hpp: the NVMe tier as coroutines see it: extents that are read and written whole, or an
// exception that says which tensor, which file, where, how many bytes were wanted and got, and the
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
#include "swap/extents.hpp"
#include "swap/lane.hpp"
#include "swap/record.hpp"

namespace headrace::swap {
// What a transfer is for; texts are made of it only when something fails.
struct Subject {
  const char* action = "";            // "swap in", "swap in state of", ...
  const std::string* name = nullptr;  // the tile's first parameter
  std::uint64_t tile = 0;
  std::string text() const;
};

struct SwapTierOptions : LaneOptions {
  std::vector<PathProbe> paths;            // probed before, one per drive
  std::vector<std::uint64_t> drive_bytes;  // size of each swap file; 0: there is none
  // Told the error of the first transfer that never completed, on the conductor, before the
  // coroutine that waits for it has its memory back.
  std::function<void(const std::string& cause)> on_stall;
};

// Threads: the constructor and destructor on the caller's; everything else on the conductor, but
// totals().
class SwapTier {
 public:
  // Makes run directories and files (in full) and starts the drives. Throws, with nothing left
  // behind.
  SwapTier(async::Conductor& conductor, SwapTierOptions options);
  ~SwapTier();

  const RunBytes& run() const noexcept { return run_; }
  // Throws kNoSpace when the plan and the tier disagree.
  Extent allocate(std::uint32_t drive, std::uint64_t size_bytes);
  // Whole extents; `into`/`from` have the extent's size. A failed read is repeated once, unless the
  // deadline ended it. The tier looks at no checksum: bytes that differ are not read again.
  // After a transfer that never completed every other one is refused with kIoStalled: the kernel
  // may still write to the memory of the lost one, which may have got another owner meanwhile.
  async::Task<> read(Extent extent, std::span<std::byte> into, Priority priority, Subject subject);
  // A failed write is repeated once on another extent; `extent` then names that one.
  async::Task<> write(Extent& extent, std::span<const std::byte> from, Priority priority,
                      Subject subject);

  DriveCounters totals() const noexcept;
  DriveCounters counters(std::size_t drive) const noexcept;  // zeros where nothing is stored
  std::string queue_name() const;
  std::string queue_reason() const;
  Registered registered() const;  // on all drives; the first refusal
  bool direct() const noexcept;
  // A drive gave a transfer up. Any thread.
  bool stalled() const noexcept;
  // Throws kIoStalled, beginning with `call`, if a transfer never completed: what was leased since
  // may be its memory.
  void refuse_after_stall(std::string_view call) const;
  std::string place(const Extent& extent) const;  // "FILE at 73400320"

 private:
  // A lane and who has what of its file.
  struct SwapLane;
  const SwapLane& first() const noexcept;  // of those that store something
  async::Task<bool> try_write(const Extent& extent, std::span<const std::byte> from,
                              Priority priority, const Subject& subject, int& error,
                              std::uint64_t& done);
  [[noreturn]] void fail(const Extent& extent, const Subject& subject, IoKind kind,
                         std::uint64_t done, int error, const char* more);
  RunBytes run_{};
  std::function<void(const std::string& cause)> on_stall_;
  std::string stall_;  // the error of the first transfer that never completed
  std::vector<std::unique_ptr<SwapLane>> lanes_;
  std::atomic<std::uint64_t> repeats_{0};
};
}  // namespace headrace::swap
