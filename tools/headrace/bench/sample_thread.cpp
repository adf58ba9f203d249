// SPDX-License-Identifier: Apache-2.0
#include "bench/sample_thread.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "program/signals.hpp"
#include "swap/never_freed.hpp"

namespace headrace::tools {
namespace {
constexpr std::chrono::milliseconds kPatience{250};  // between looks at signals
constexpr std::uint64_t kSector = 512;
constexpr std::uint32_t kMostIdleAttempts = 16;  // of a request, without a byte moved

std::uint64_t nanoseconds_between(BenchClock::time_point from, BenchClock::time_point to) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}
}  // namespace

SampleThread::SampleThread(const SampleThreadOptions& options)
    : options_(options),
      order_(options.workload, options.part_begin, options.part_bytes, options.bytes, options.turn),
      blocks_wanted_(options.bytes == 0 ? 0
                                        : std::max<std::uint64_t>(
                                              1, options.bytes / options.workload.block_bytes)),
      slots_(options.workload.depth) {
  const int file = options_.target->fd();
  swap::IoQueueOptions queue;
  queue.depth = options_.workload.depth;
  queue.submit_batch = options_.workload.submit_batch;
  queue.buffers = options_.buffers;
  if (!options_.workload.register_buffers) queue.register_buffers = RegisterBuffers::kOff;
  queue.files = {&file, 1};
  swap::ChosenIoQueue chosen = options_.choose_queue(options_.workload.queue, queue);
  queue_ = std::move(chosen.queue);
  const swap::Registered registered = queue_->registered();
  const std::string what = swap::text_of(registered);
  queue_text_ = queue_->name() + (what.empty() ? "" : ", " + what);
  queue_notes_ = std::move(chosen.reason);
  if (!registered.refused.empty())
    queue_notes_ += (queue_notes_.empty() ? "" : "; ") + registered.refused;
  const std::uint64_t block = options_.workload.block_bytes;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].fd = file;
    slots_[i].read_memory = options_.read_memory.data() + i * block;
    slots_[i].write_memory = options_.write_memory.data() + i * block;
  }
}

SampleThreadResult SampleThread::run(std::atomic<std::uint64_t>& moved) {
  moved_ = &moved;
  result_.began = last_completion_ = BenchClock::now();
  for (Slot& slot : slots_) start(slot, result_.began);
  while (under_way_ > 0) {
    flush();
    reap();
  }
  result_.ended = BenchClock::now();
  if (error_) std::rethrow_exception(error_);
  check_signal();
  return std::move(result_);
}

bool SampleThread::may_start(BenchClock::time_point now) const noexcept {
  if (error_ || signal_received() != 0) return false;
  if (blocks_wanted_ != 0 && started_ >= blocks_wanted_) return false;
  return options_.seconds == 0 ||
         std::chrono::duration<double>(now - result_.began).count() < options_.seconds;
}

bool SampleThread::is_under_way(std::uint64_t block_offset) const noexcept {
  return std::ranges::any_of(
      slots_, [&](const Slot& slot) { return slot.busy && slot.block_offset == block_offset; });
}

// The next block, where there is one. Beside a write to a block, nobody knows what a read of it
// finds: a mixed pattern waits until the one before has ended.
void SampleThread::start(Slot& slot, BenchClock::time_point now) {
  if (!may_start(now)) return;
  const std::uint64_t offset = order_.offset_of(started_);
  if (options_.workload.pattern == Pattern::kMixed && is_under_way(offset)) return;
  ++started_;
  slot.block_offset = offset;
  slot.busy = true;
  const bool read_first = reads(options_.workload.pattern);
  ++under_way_;
  submit(slot, read_first ? swap::IoKind::kRead : swap::IoKind::kWrite, now);
}

void SampleThread::submit(Slot& slot, swap::IoKind kind, BenchClock::time_point now) {
  slot.kind = kind;
  slot.done_bytes = 0;
  slot.idle_attempts = 0;
  slot.submitted = now;
  if (kind == swap::IoKind::kWrite) {
    Stamps::stamp({slot.write_memory, options_.workload.block_bytes},
                  slot.block_offset / kPageBytes, options_.generation);
    // Until it is whole nobody knows what is there.
    options_.target->pages().set(slot.block_offset, options_.workload.block_bytes,
                                 PageMap::kUnknown);
  }
  send(slot);
}

void SampleThread::end_block(Slot& slot, BenchClock::time_point now) {
  --under_way_;
  slot.busy = false;
  if (options_.workload.pattern != Pattern::kMixed) return start(slot, now);
  for (Slot& idle : slots_)
    if (!idle.busy) start(idle, now);
}

// Sends the rest of the block.
void SampleThread::send(Slot& slot) {
  std::byte* const memory = slot.kind == swap::IoKind::kRead ? slot.read_memory : slot.write_memory;
  slot.data = memory + slot.done_bytes;
  slot.offset_bytes = slot.block_offset + slot.done_bytes;
  slot.size_bytes = static_cast<std::uint32_t>(options_.workload.block_bytes - slot.done_bytes);
  while (!queue_->submit(slot)) {  // never more than depth are under way: full for a moment only
    flush();
    std::this_thread::yield();
  }
}

void SampleThread::flush() {
  for (int attempt = 0;; ++attempt) {
    const int error = queue_->flush();
    if (error == 0) return;
    // The kernel is out of something for a moment; a reap makes room.
    if ((error == EAGAIN || error == EBUSY) && attempt < 1000) return;
    if (!error_)
      error_ = std::make_exception_ptr(Error(
          Code::kIo, "requests were not taken by the kernel: " + base::errno_text(error), error));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void SampleThread::reap() {
  std::array<swap::IoRequest*, 64> done;
  const std::size_t count = queue_->reap(done, kPatience);
  const BenchClock::time_point now = BenchClock::now();
  for (std::size_t i = 0; i < count; ++i) completed(static_cast<Slot&>(*done[i]), now);
  if (count > 0) last_completion_ = now;
  if (std::chrono::duration<double>(now - last_completion_).count() < options_.deadline_seconds)
    return;
  // The kernel may still write to the memory of what never completed.
  swap::never_free(std::move(queue_));
  throw Error(
      Code::kIoStalled,
      fmt::format("no request on {} completed within {:.0f} s; nothing was measured; look at the "
                  "drive (dmesg)",
                  options_.target->file_path(), options_.deadline_seconds));
}

void SampleThread::completed(Slot& slot, BenchClock::time_point now) {
  const std::int64_t result = slot.result;
  const bool moved = result >= static_cast<std::int64_t>(kSector);
  const bool again = result == 0 || result == -EAGAIN || result == -EINTR;
  if (moved) slot.done_bytes += base::align_down(static_cast<std::uint64_t>(result), kSector);
  slot.idle_attempts = moved ? 0 : slot.idle_attempts + 1;
  if (slot.done_bytes == options_.workload.block_bytes) {
    slot.kind == swap::IoKind::kRead ? block_read(slot, now) : block_written(slot, now);
  } else if ((moved || (again && slot.idle_attempts < kMostIdleAttempts)) && !error_) {
    send(slot);
  } else {
    --under_way_;
    slot.busy = false;
    if (!error_) {
      try {
        fail(slot, result);
      } catch (...) {
        error_ = std::current_exception();
      }
    }
  }
}

// A block more, of one of the result's directions.
void SampleThread::count(std::uint64_t& direction) {
  direction += options_.workload.block_bytes;
  moved_->store(result_.read_bytes + result_.written_bytes, std::memory_order_relaxed);
}

void SampleThread::block_read(Slot& slot, BenchClock::time_point now) {
  result_.read_latency.add(nanoseconds_between(slot.submitted, now));
  ++result_.reads;
  count(result_.read_bytes);
  compare(slot);
  if (writes(options_.workload.pattern) && !error_) {
    submit(slot, swap::IoKind::kWrite, now);
    return;
  }
  end_block(slot, now);
}

void SampleThread::block_written(Slot& slot, BenchClock::time_point now) {
  options_.target->pages().set(slot.block_offset, options_.workload.block_bytes,
                               options_.generation);
  result_.write_latency.add(nanoseconds_between(slot.submitted, now));
  ++result_.writes;
  count(result_.written_bytes);
  end_block(slot, now);
}

void SampleThread::compare(const Slot& slot) {
  if (!options_.target->verifiable()) return;
  const std::uint64_t pages = options_.workload.block_bytes / kPageBytes;
  if (options_.verify == Verify::kWhole) {
    for (std::uint64_t page = 0; page < pages; ++page) compare_page(slot, page, true);
    return;
  }
  compare_page(slot, 0, false);
  if (pages > 2) compare_page(slot, pages / 2, false);
  if (pages > 1) compare_page(slot, pages - 1, false);
}

void SampleThread::compare_page(const Slot& slot, std::uint64_t page_of_block, bool whole) {
  const std::uint64_t number = slot.block_offset / kPageBytes + page_of_block;
  const std::uint32_t generation = options_.target->pages().at(number);
  if (generation == PageMap::kUnknown) return;
  const std::span<const std::byte, kPageBytes> page(slot.read_memory + page_of_block * kPageBytes,
                                                    kPageBytes);
  ++(whole ? result_.pages : result_.stamps);
  const std::string fault = options_.stamps->fault(page, number, generation, whole);
  if (fault.empty()) return;
  if (result_.mismatches++ == 0) {
    result_.first_mismatch =
        fmt::format("{} at {}: {}", options_.target->file_path(), number * kPageBytes, fault);
  }
}

void SampleThread::fail(const Slot& slot, std::int64_t result) const {
  const int error = result < 0 ? static_cast<int>(-result) : 0;
  throw Error(
      error == ENOSPC || error == EDQUOT ? Code::kNoSpace : Code::kIo,
      fmt::format(
          "{} of {} bytes at {} of {} {}; nothing is reported; look at the drive (dmesg) or "
          "name another directory",
          slot.kind == swap::IoKind::kRead ? "read" : "write", options_.workload.block_bytes,
          slot.block_offset, options_.target->file_path(),
          error != 0 ? "failed: " + base::errno_text(error)
                     : fmt::format("ended after {} bytes", slot.done_bytes)),
      error);
}
}  // namespace headrace::tools
