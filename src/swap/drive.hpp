// SPDX-License-Identifier: Apache-2.0
// drive.hpp: one drive: a thread that knows nothing but I/O, over one queue.
//
// A transfer of any size is cut into I/O blocks, each completion is compared with its request,
// short ones are continued, EAGAIN and EINTR repeated, and a transfer that makes no progress is
// named and then given up.
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
// kDemand: what a call waits for, and the reads of every update, deferred or not. A prefetch keeps
// its priority when a gather comes to wait for it.
enum class Priority : std::uint8_t { kDemand, kPrefetch, kWriteBack };

// One contiguous read or write. Owned by the caller; the drive posts it to the conductor when it
// has ended, with the outcome filled in. Nothing is thrown and nothing logged by the drive but
// stalls.
struct Transfer : async::Work {
  IoKind kind = IoKind::kRead;
  Priority priority = Priority::kDemand;
  std::byte* data = nullptr;  // aligned to kIoAlignment, as are offset and size
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  const char* what = "";  // for stall messages; outlives the transfer
  // Outcome: bytes moved from the start without a gap, and the errno that ended it (0: all of it
  // was moved). A read past the end of the file ends with error 0 and done_bytes < size_bytes; a
  // stalled one with ETIMEDOUT.
  std::uint64_t done_bytes = 0;
  int error = 0;
  Transfer* next_transfer = nullptr;  // the drive's
};

struct DriveCounters {
  std::uint64_t read_bytes = 0, written_bytes = 0;   // as the queue's completions said
  std::uint64_t reads = 0, writes = 0, retries = 0;  // requests
  double read_busy_seconds = 0, write_busy_seconds = 0;
};

// A seam: DriveThread below is the real one, tests have one in memory under the simulated
// conductor.
class Drive {
 public:
  virtual ~Drive() = default;  // waits for what is in flight
  // From the conductor. Allocates nothing. Demand before prefetch before write-back; first come
  // within each.
  virtual void start(Transfer& transfer) noexcept = 0;
  virtual DriveCounters counters() const noexcept = 0;  // any thread
  virtual const char* queue_name() const noexcept = 0;
  virtual const std::string& queue_reason() const noexcept = 0;
  virtual Registered registered() const { return {}; }  // what its queue has registered
  // True once a transfer was given up as lost: its buffer may still be written to by the kernel, so
  // the arena must be leaked and close() must say so.
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
// Starts the thread; throws what make_queue throws.
std::unique_ptr<Drive> make_drive_thread(async::Conductor& conductor, DriveOptions options);
}  // namespace headrace::swap
