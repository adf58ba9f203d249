// SPDX-License-Identifier: Apache-2.0
#include "swap/drive_loop.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"

namespace headrace::swap {
namespace {
constexpr std::size_t kReapBatch = 32;
}  // namespace

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

DriveLoop::DriveLoop(async::Executor& ends, const DriveOptions& options, KernelSide& kernel)
    : ends_(ends),
      options_(options),
      kernel_(kernel),
      log_(base::sink_or_stderr(options.log)),
      window_(kernel.fd()),
      watch_(options.warn_seconds, options.deadline_seconds, DriveClock::now()) {
  for (Block& block : kernel_.blocks()) free_blocks_.push(block);
  schedule_.set_up(static_cast<std::uint32_t>(kernel_.blocks().size()));
}

DriveCounters DriveLoop::counters() const noexcept {
  return {.read_bytes = reads_.bytes.load(),
          .written_bytes = writes_.bytes.load(),
          .reads = reads_.requests.load(),
          .writes = writes_.requests.load(),
          .syncs = syncs_.requests.load(),
          .retries = retries_.load(),
          .read_busy_seconds = reads_.busy.seconds(),
          .write_busy_seconds = writes_.busy.seconds()};
}

void DriveLoop::begin() noexcept {
  if (abandoned_ == kernel_.blocks().size()) fail_all_waiting();
  resubmit_waiting();
  while (!free_blocks_.empty()) {
    Active* const active = schedule_.next();
    if (active == nullptr) break;
    cut_block(*active);
  }
  flush_error_ = kernel_.queue().flush();
}

void DriveLoop::finish() noexcept {
  std::array<IoRequest*, kReapBatch> done;
  const std::size_t count = kernel_.queue().reap(done, patience());
  for (std::size_t i = 0; i < count; ++i) handle(static_cast<Block&>(*done[i]));
  look_at_ages();
}

// How long to wait for completions: until a retry is due, or the ages are to be looked at.
nanoseconds DriveLoop::patience() const noexcept {
  nanoseconds wait = in_queue_ > abandoned_ ? watch_.interval() : std::chrono::hours(1);
  if (flush_error_ != 0) wait = std::min<nanoseconds>(wait, milliseconds(1));
  if (!waiting_.empty()) {
    const DriveClock::time_point now = DriveClock::now();
    for (const Block* block = waiting_.front(); block != nullptr; block = block->next_block) {
      wait = std::min<nanoseconds>(
          wait, std::max<nanoseconds>(block->not_before - now, microseconds(20)));
    }
  }
  return wait;
}

void DriveLoop::resubmit_waiting() noexcept {
  if (waiting_.empty()) return;
  const DriveClock::time_point now = DriveClock::now();
  auto rest = waiting_.take_all();
  while (Block* const block = rest.pop()) {
    if (block->active->stopped) {
      end_block(*block, 0);
    } else if (block->not_before > now) {
      waiting_.push(*block);
    } else {
      submit(*block);
    }
  }
}

void DriveLoop::cut_block(Active& active) noexcept {
  const Transfer& transfer = *active.transfer;
  const std::uint64_t size = std::min(options_.io_block_bytes, transfer.size_bytes - active.issued);
  const bool one_block = size > 0 || transfer.kind == IoKind::kSync;
  Block* const block = one_block ? free_blocks_.pop() : nullptr;
  if (block != nullptr) {
    block->kind = transfer.kind;
    block->fd = transfer.fd < 0 ? kernel_.fd() : transfer.fd;
    block->active = &active;
    block->at = block->reached = active.issued;
    block->end = active.issued + size;
    block->attempts = 0;
    active.issued += size;
    ++active.blocks;
  }
  if (active.issued == transfer.size_bytes) schedule_.withdraw(active);
  if (block != nullptr) {
    submit(*block);
  } else {
    complete_if_done(active);  // a transfer of no bytes
  }
}

void DriveLoop::submit(Block& block) noexcept {
  const Transfer& transfer = *block.active->transfer;
  block.data = transfer.data + block.at;
  block.offset_bytes = transfer.offset_bytes + block.at;
  block.size_bytes = static_cast<std::uint32_t>(block.end - block.at);
  block.since = DriveClock::now();
  block.warned = false;
  if (!kernel_.queue().submit(block)) {
    block.state = BlockState::kWaiting;
    block.not_before = block.since + milliseconds(1);
    waiting_.push(block);
    return;
  }
  block.state = BlockState::kInQueue;
  block.registered = block.kind != IoKind::kSync && kernel_.uses_registered_buffers();
  ++in_queue_;
  counters_of(block).requests.fetch_add(1, std::memory_order_relaxed);
  counters_of(block).busy.begin();
}

void DriveLoop::handle(Block& block) noexcept {
  // Nothing can be saved: the block, or the memory, may be another transfer's by now.
  HEADRACE_CHECK(block.state == BlockState::kInQueue || block.state == BlockState::kAbandoned,
                 "a request was completed twice");
  --in_queue_;
  DirectionCounters& counters = counters_of(block);
  if (block.result > 0) {
    counters.bytes.fetch_add(static_cast<std::uint64_t>(block.result), std::memory_order_relaxed);
  }
  // Late: its transfer has ended, only the block comes back.
  if (block.state == BlockState::kAbandoned) {
    --abandoned_;
    block.state = BlockState::kFree;
    free_blocks_.push(block);
    return;
  }
  counters.busy.end();
  if (goes_unregistered(block)) return repeat(block, static_cast<int>(-block.result));
  const Verdict verdict = judge(block);
  switch (verdict.next) {
    case Verdict::Next::kEnd:
      return end_block(block, verdict.error);
    case Verdict::Next::kContinue:
      return go_on(block);
    case Verdict::Next::kRepeat:
      return repeat(block, verdict.error);
  }
}

// Some kernels fail requests on registered memory alone. Those on their way when the first one
// failed are issued once more without it, and only then does their errno count: the writes of a
// commit have no other attempt.
bool DriveLoop::goes_unregistered(const Block& block) noexcept {
  if (block.result >= 0) return false;
  if (kernel_.lost_registration()) {
    log_(LogLevel::kInfo, "swap drive " + std::to_string(options_.index) + " (" + options_.path +
                              "): a request on registered memory failed: " +
                              base::errno_text(static_cast<int>(-block.result)) +
                              ": from now on every request names its own, at a little more CPU");
  }
  return block.registered && !kernel_.uses_registered_buffers();
}

void DriveLoop::go_on(Block& block) noexcept {
  if (block.active->stopped) return end_block(block, 0);
  retries_.fetch_add(1, std::memory_order_relaxed);
  submit(block);
}

void DriveLoop::repeat(Block& block, int error) noexcept {
  if (block.active->stopped) return end_block(block, 0);
  if (!schedule_repeat(block, DriveClock::now())) return end_block(block, error);
  retries_.fetch_add(1, std::memory_order_relaxed);
  block.state = BlockState::kWaiting;
  waiting_.push(block);
}

void DriveLoop::end_block(Block& block, int error) noexcept {
  Active& active = *block.active;
  if (block.reached < block.end || error != 0) end_early(active, block.reached, error);
  block.active = nullptr;
  block.state = BlockState::kFree;
  free_blocks_.push(block);
  --active.blocks;
  complete_if_done(active);
}

void DriveLoop::end_early(Active& active, std::uint64_t position, int error) noexcept {
  Transfer& transfer = *active.transfer;
  active.whole = std::min(active.whole, position);
  if (transfer.error == 0) transfer.error = error;
  active.stopped = true;
  schedule_.withdraw(active);
}

void DriveLoop::complete_if_done(Active& active) noexcept {
  Transfer& transfer = *active.transfer;
  if (active.blocks > 0 || (!active.stopped && active.issued < transfer.size_bytes)) return;
  transfer.done_bytes = std::min(active.whole, active.issued);
  conclude(transfer);
  schedule_.release(active);
  ends_.post(transfer);
}

// Draws the consequences of a transfer's end for the page cache and for its outcome.
void DriveLoop::conclude(Transfer& transfer) noexcept {
  if (transfer.fd >= 0) return;  // the program's file: how it is cached is the program's affair
  const auto note_loss = [this](int error) {
    if (lost_writes_error_ == 0) lost_writes_error_ = error;
  };
  if (transfer.kind == IoKind::kRead) {
    window_.read(transfer.offset_bytes, transfer.done_bytes);
  } else if (transfer.kind == IoKind::kWrite) {
    const int error = window_.wrote(transfer.offset_bytes, transfer.done_bytes);
    if (transfer.error == 0) transfer.error = error;
    note_loss(error);  // may be an earlier write's, and the kernel does not tell a sync again
  } else {
    note_loss(transfer.error);
    transfer.error = lost_writes_error_;
  }
}

void DriveLoop::look_at_ages() noexcept {
  watch_.look(
      DriveClock::now(), kernel_.blocks(), in_queue_ > abandoned_,
      [this](const Block& block, nanoseconds age) {
        log_(LogLevel::kWarning, watch_.slow_text(describe_stall(block, age)));
      },
      [this](Block& block, nanoseconds age) {
        log_(LogLevel::kError, StallWatch::lost_text(describe_stall(block, age)));
        give_up(block);
      });
}

void DriveLoop::give_up(Block& block) noexcept {
  stalled_.store(true);
  counters_of(block).busy.end();
  Active& active = *block.active;
  block.state = BlockState::kAbandoned;
  block.active = nullptr;
  ++abandoned_;
  end_early(active, block.reached, ETIMEDOUT);
  --active.blocks;
  complete_if_done(active);
}

// No block is left to move anything with.
void DriveLoop::fail_all_waiting() noexcept {
  while (Active* const active = schedule_.next()) {
    end_early(*active, active->issued, ETIMEDOUT);
    complete_if_done(*active);
  }
}

std::string DriveLoop::describe_stall(const Block& block, nanoseconds age) const {
  return describe(block, age,
                  {.drive = options_.index,
                   .path = options_.path,
                   .queue = kernel_.queue_name(),
                   .in_queue = in_queue_,
                   .flush_error = flush_error_});
}
}  // namespace headrace::swap
