// SPDX-License-Identifier: Apache-2.0
// drive_loop.hpp: the rounds of a drive's thread: it cuts transfers into blocks, keeps the queue
// full in order of priority, and follows every block until all its bytes have moved or an errno has
// ended it.
//
// What an answer means is block.hpp's, which transfer is next transfer_schedule.hpp's, what takes
// too long stall_watch.hpp's. A block is in one of four places:
//
//   free --cut--> in the queue --answer--> free again, or in the queue for the rest
//                              --answer--> waiting, where it is to be tried again after a pause
//                              --deadline--> abandoned, until the kernel answers after all
//
// Example: a read of 5 MiB, blocks of 1 MiB, a depth of 4. begin() cuts and submits four; finish()
// reaps the second, which came short by half: it goes back for the other half. The first is whole,
// so the next begin() cuts the fifth. The transfer is posted when no block of it is under way.
//
// The end of a lost transfer: a block makes no progress for the deadline. give_up() marks it
// abandoned and ends its transfer with ETIMEDOUT, so whoever waits goes on, with memory that the
// kernel may still write to. From here on stalled() is true, the engine has failed, and the arena
// is leaked instead of freed. The block stays out of use. If its completion comes after all,
// handle() gives the block back and touches no transfer, since another may have its place by then.
// When all blocks are abandoned nothing can move any more, and every waiting transfer ends with
// ETIMEDOUT. In the end the thread leaves the kernel's side of a drive with abandoned blocks behind
// for ever (never_free): a late write then lands in a file that is still ours.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "async/conductor.hpp"
#include "base/intrusive_list.hpp"
#include "swap/block.hpp"
#include "swap/buffered_window.hpp"
#include "swap/drive.hpp"
#include "swap/kernel_side.hpp"
#include "swap/lane_counters.hpp"
#include "swap/stall_watch.hpp"
#include "swap/transfer_schedule.hpp"

namespace headrace::swap {
// The drive's thread only, but where said otherwise.
class DriveLoop {
 public:
  // All of them outlive it, the kernel's side until the last round.
  DriveLoop(async::Conductor& conductor, const DriveOptions& options, KernelSide& kernel);

  void add(Transfer& transfer) noexcept { schedule_.add(transfer); }
  // First half of a round: submits what there is room for.
  void begin() noexcept;
  // Nothing waits, nothing is under way but what was abandoned.
  bool idle() const noexcept { return schedule_.idle(); }
  // Second half: waits until something has completed, the queue was woken, or a pause is over.
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
  void go_on(Block& block) noexcept;
  void repeat(Block& block, int error) noexcept;
  void end_block(Block& block, int error) noexcept;
  void end_early(Active& active, std::uint64_t position, int error) noexcept;
  void complete_if_done(Active& active) noexcept;
  void look_at_ages() noexcept;
  void give_up(Block& block) noexcept;
  void fail_all_waiting() noexcept;
  std::string describe_stall(const Block& block, std::chrono::nanoseconds age) const;
  LaneCounters& counters_of(const Block& block) noexcept {
    return block.kind == IoKind::kRead ? reads_ : writes_;
  }

  async::Conductor& conductor_;
  const DriveOptions& options_;
  KernelSide& kernel_;
  const LogSink log_;
  std::atomic<bool> stalled_{false};
  std::atomic<std::uint64_t> retries_{0};
  LaneCounters reads_, writes_;

  BufferedWindow window_;
  TransferSchedule schedule_;
  StallWatch watch_;
  base::IntrusiveStack<&Block::next_block> free_blocks_;
  base::IntrusiveStack<&Block::next_block> waiting_;  // to be submitted again at their time
  std::uint32_t in_queue_ = 0, abandoned_ = 0;        // the former counts the latter too
  int flush_error_ = 0;
};
}  // namespace headrace::swap
