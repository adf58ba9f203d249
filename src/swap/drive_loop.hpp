// SPDX-License-Identifier: Apache-2.0
// drive_loop.hpp: the rounds of a drive's thread. It cuts transfers into blocks, keeps the queue
// full in order of priority, and follows every block until all its bytes have moved or an errno has
// ended it.
//
// block.hpp judges completions, transfer_schedule.hpp chooses the next transfer, and
// stall_watch.hpp detects those that take too long. A block is in one of four places:
//
//   free --cut--> in the queue --answer--> free again, or in the queue for the rest
//                              --answer--> waiting, where it is to be tried again after a pause
//                              --deadline--> abandoned, until the kernel answers after all
//
// Example: a read of 5 MiB, blocks of 1 MiB, a depth of 4. begin() cuts and submits four. finish()
// reaps the second, which is short by half, and submits the other half. The first is whole, so the
// next begin() cuts the fifth. Once no block of it is in progress, the transfer is posted.
//
// The end of a lost transfer: a block makes no progress until the deadline. give_up() marks it
// abandoned and ends its transfer with ETIMEDOUT, so the waiting code continues, with memory that
// the kernel may still write to. From then on stalled() is true, the engine has failed, and the
// arena is leaked instead of freed. The block stays out of use. If its completion comes later,
// handle() frees the block and touches no transfer, since another may have its place by then. If
// all blocks are abandoned, nothing can move, and every waiting transfer ends with ETIMEDOUT. The
// kernel's side of a drive with abandoned blocks is never freed (never_free): a late write then
// lands in a file that is still ours.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "async/work.hpp"
#include "base/intrusive_list.hpp"
#include "swap/block.hpp"
#include "swap/buffered_window.hpp"
#include "swap/direction_counters.hpp"
#include "swap/drive.hpp"
#include "swap/kernel_side.hpp"
#include "swap/stall_watch.hpp"
#include "swap/transfer_schedule.hpp"

namespace headrace::swap {
// For the drive's thread only, except where noted.
class DriveLoop {
 public:
  // All of them outlive it, the kernel's side until the last round.
  DriveLoop(async::Executor& ends, const DriveOptions& options, KernelSide& kernel);

  void add(Transfer& transfer) noexcept { schedule_.add(transfer); }
  // The first half of a round: submits as many blocks as there is room for.
  void begin() noexcept;
  // Nothing waits, and only abandoned blocks are in progress.
  bool idle() const noexcept { return schedule_.idle(); }
  // The second half: waits until a block completes, the queue is woken, or a pause ends.
  void finish() noexcept;
  // Requests that never completed.
  std::uint32_t abandoned() const noexcept { return abandoned_; }

  // ---- any thread ----
  DriveCounters counters() const noexcept;
  bool stalled() const noexcept { return stalled_.load(); }

 private:
  void resubmit_waiting() noexcept;
  void cut_block(Active& active) noexcept;
  void submit(Block& block) noexcept;
  std::chrono::nanoseconds patience() const noexcept;
  void handle(Block& block) noexcept;
  bool goes_unregistered(const Block& block) noexcept;
  void go_on(Block& block) noexcept;
  void repeat(Block& block, int error) noexcept;
  void end_block(Block& block, int error) noexcept;
  void end_early(Active& active, std::uint64_t position, int error) noexcept;
  void complete_if_done(Active& active) noexcept;
  void conclude(Transfer& transfer) noexcept;
  void look_at_ages() noexcept;
  void give_up(Block& block) noexcept;
  void fail_all_waiting() noexcept;
  std::string describe_stall(const Block& block, std::chrono::nanoseconds age) const;
  DirectionCounters& counters_of(const Block& block) noexcept {
    return block.kind == IoKind::kRead ? reads_ : block.kind == IoKind::kWrite ? writes_ : syncs_;
  }

  async::Executor& ends_;
  const DriveOptions& options_;
  KernelSide& kernel_;
  const LogSink log_;
  std::atomic<bool> stalled_{false};
  std::atomic<std::uint64_t> retries_{0};
  DirectionCounters reads_, writes_, syncs_;

  BufferedWindow window_;
  TransferSchedule schedule_;
  StallWatch watch_;
  base::IntrusiveStack<&Block::next_block> free_blocks_;
  base::IntrusiveStack<&Block::next_block> waiting_;  // to be submitted again later
  std::uint32_t in_queue_ = 0, abandoned_ = 0;        // the former includes the latter
  int flush_error_ = 0;
  // The errno of the first write-back or sync that failed. Writes that had completed may be lost
  // since then, so every sync ends with it.
  int lost_writes_error_ = 0;
};
}  // namespace headrace::swap
