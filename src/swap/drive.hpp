// SPDX-License-Identifier: Apache-2.0
// drive.hpp: one drive: a thread that does only I/O, over one queue.
//
// It cuts a transfer of any size into I/O blocks, and compares each completion with its request. It
// continues short transfers, and repeats reads and writes after EAGAIN and EINTR. If a transfer
// makes no progress, it logs a warning, and later gives the transfer up.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "async/conductor.hpp"
#include "headrace/log.hpp"
#include "headrace/settings.hpp"
#include "swap/io_queue.hpp"

namespace headrace::swap {
// In the order in which they are served (transfer_schedule.hpp).
// kDemand      transfers that a call waits for, and the reads of every update, deferred or not
// kPrefetch    reads for gathers to come; they keep this priority if a gather begins to wait
// kWriteBack   the writes of updates
// kBackground  transfers that nothing in the step waits for
enum class Priority : std::uint8_t { kDemand, kPrefetch, kWriteBack, kBackground };

// One contiguous read or write, or a sync of the file (`data` null, `size_bytes` 0). The caller
// owns it. When it has ended, the drive fills in the outcome and posts it to the conductor. The
// drive throws nothing, and logs only stalls.
//
// A sync covers the writes that ended before it was started. Callers start it only then, so the
// drive does not order it against other transfers. A failed sync is final: the drive does not
// repeat it, and every later sync of this drive fails too, since the kernel reports a lost write
// only once.
struct Transfer : async::Work {
  IoKind kind = IoKind::kRead;
  Priority priority = Priority::kDemand;
  std::byte* data = nullptr;  // aligned to kIoAlignment, as are offset and size; see fd
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  int fd = -1;  // -1: the drive's; else one that outlives the transfer, which need not be aligned
                // unless the file is open with O_DIRECT
  const char* what = "";  // for stall messages; outlives the transfer
  // The outcome: the bytes moved from the start without a gap, and the errno that ended it (0: all
  // bytes were moved). A read past the end of the file ends with error 0 and done_bytes <
  // size_bytes, a stalled one with ETIMEDOUT.
  std::uint64_t done_bytes = 0;
  int error = 0;
  Transfer* next_transfer = nullptr;  // for the drive's use
};

struct DriveCounters {
  std::uint64_t read_bytes = 0, written_bytes = 0;              // as the queue's completions report
  std::uint64_t reads = 0, writes = 0, syncs = 0, retries = 0;  // requests
  double read_busy_seconds = 0, write_busy_seconds = 0;

  DriveCounters& operator+=(const DriveCounters& one) noexcept {
    read_bytes += one.read_bytes;
    written_bytes += one.written_bytes;
    reads += one.reads;
    writes += one.writes;
    syncs += one.syncs;
    retries += one.retries;
    read_busy_seconds += one.read_busy_seconds;
    write_busy_seconds += one.write_busy_seconds;
    return *this;
  }
};

// A seam. DriveThread below is the real drive. Tests have one in memory, under the simulated
// conductor.
class Drive {
 public:
  virtual ~Drive() = default;  // waits for transfers in flight
  // Call it on the conductor. Allocates nothing. Demand goes before prefetch, prefetch before
  // write-back, and write-back before background; within each, first come, first served.
  virtual void start(Transfer& transfer) noexcept = 0;
  virtual DriveCounters counters() const noexcept = 0;  // any thread
  virtual const char* queue_name() const noexcept = 0;
  virtual const std::string& queue_reason() const noexcept = 0;
  virtual Registered registered() const { return {}; }  // what its queue has registered
  // True once the drive gave up a transfer as lost. The kernel may still write to its buffer, so
  // the arena must be leaked, and close() must report that.
  virtual bool stalled() const noexcept = 0;
};

struct DriveOptions {
  std::string path = {};    // of the swap file, for messages
  int fd = -1;              // open; outlives the drive
  std::uint32_t index = 0;  // names the thread: headrace-io0
  std::uint64_t io_block_bytes = 1 << 20;
  std::uint32_t queue_depth = 16;
  std::uint32_t submit_batch = 2;
  RegisterBuffers register_buffers = RegisterBuffers::kAuto;
  double warn_seconds = 10;
  double deadline_seconds = 60;
  std::vector<std::span<std::byte>> buffers = {};
  LogSink log = {};
  IoQueueMaker make_queue = {};  // called on the drive's thread
};
// Starts the thread, whose transfers are posted to `ends` when they have ended. Its start() may be
// called on any thread. Throws what make_queue throws.
std::unique_ptr<Drive> make_drive_thread(async::Executor& ends, DriveOptions options);
}  // namespace headrace::swap
