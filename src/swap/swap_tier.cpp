// SPDX-License-Identifier: Apache-2.0
#include "swap/swap_tier.hpp"

#include <cerrno>
#include <cstdlib>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "swap/refusal.hpp"

namespace headrace::swap {
// One drive and what is on it. Members go in reverse order: the drive drains before its file
// closes, the file is unlinked before its directory goes.
struct SwapTier::Lane {
  PathProbe path;
  std::unique_ptr<RunDirectory> directory;
  std::unique_ptr<SwapFile> file;
  std::unique_ptr<ExtentAllocator> extents;
  std::unique_ptr<Drive> drive;
};

namespace {
// co_await: starts the transfer and resumes on the conductor when the drive has ended it.
class TransferDone {
 public:
  TransferDone(Drive& drive, IoKind kind, std::byte* data, const Extent& extent, Priority priority,
               const char* what)
      : drive_(drive) {
    transfer_.kind = kind;
    transfer_.priority = priority;
    transfer_.data = data;
    transfer_.offset_bytes = extent.offset_bytes;
    transfer_.size_bytes = extent.size_bytes;
    transfer_.what = what;
    transfer_.owner = this;
    transfer_.run = [](async::Work* work) noexcept {
      static_cast<Owned*>(work)->owner->waiting_.resume();
    };
  }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept {
    waiting_ = handle;
    drive_.start(transfer_);
  }
  const Transfer& await_resume() const noexcept { return transfer_; }

 private:
  struct Owned : Transfer {
    TransferDone* owner = nullptr;
  };
  Drive& drive_;
  Owned transfer_;
  std::coroutine_handle<> waiting_;
};

RunBytes to_bytes(const std::string& hex) {
  RunBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(std::strtoul(hex.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}
}  // namespace

std::string Subject::text() const {
  return std::string(action) + " '" + (name != nullptr ? *name : "?") + "' (tile " +
         std::to_string(tile) + ")";
}

SwapTier::SwapTier(async::Conductor& conductor, SwapTierOptions options)
    : on_stall_(std::move(options.on_stall)) {
  const std::string run_id = make_run_id();
  run_ = to_bytes(run_id);
  for (std::size_t d = 0; d < options.paths.size(); ++d) {
    auto lane = std::make_unique<Lane>();
    lane->path = options.paths[d];
    // Two drives may name one path (for tests): each has a directory of its own.
    lane->directory = std::make_unique<RunDirectory>(
        lane->path, d == 0 ? run_id : run_id + "-" + std::to_string(d), options.log);
    const std::string name =
        "rank" + std::to_string(options.rank) + "." + std::to_string(d) + ".swap";
    lane->file =
        std::make_unique<SwapFile>(*lane->directory, lane->path, name, options.drive_bytes[d]);
    lane->extents =
        std::make_unique<ExtentAllocator>(static_cast<std::uint32_t>(d), options.drive_bytes[d]);
    DriveOptions drive;
    drive.path = lane->file->path();
    drive.fd = lane->file->fd();
    drive.index = static_cast<std::uint32_t>(d);
    drive.io_block_bytes = options.settings.io_block_bytes;
    drive.queue_depth = options.settings.queue_depth;
    drive.submit_batch = options.settings.submit_batch;
    drive.register_buffers = options.settings.register_buffers;
    drive.warn_seconds = options.settings.io_warn_seconds;
    drive.deadline_seconds = options.settings.io_deadline_seconds;
    drive.buffers = options.buffers;
    drive.log = options.log;
    drive.make_queue = options.make_queue;
    lane->drive = options.make_drive(conductor, std::move(drive));
    lanes_.push_back(std::move(lane));
  }
}
SwapTier::~SwapTier() = default;

Extent SwapTier::allocate(std::uint32_t drive, std::uint64_t size_bytes) {
  if (auto extent = lanes_[drive]->extents->allocate(size_bytes)) return *extent;
  throw Error(Code::kNoSpace, "no extent of " + base::format_bytes(size_bytes) + " is left in " +
                                  lanes_[drive]->file->path());
}

std::string SwapTier::place(const Extent& extent) const {
  return lanes_[extent.file]->file->path() + " at " + std::to_string(extent.offset_bytes);
}

void SwapTier::fail(const Extent& extent, const Subject& subject, IoKind kind, std::uint64_t done,
                    int error, const char* more) {
  std::string text = subject.text() + ": " + (kind == IoKind::kRead ? "read " : "write ") +
                     std::to_string(extent.size_bytes) + " bytes of " + place(extent) + ": got " +
                     std::to_string(done);
  if (error != 0) text += ", " + base::errno_text(error);
  if (error == 0 && kind == IoKind::kRead)
    text += ": the file ends there; it was truncated while in use";
  text += more;
  if (error != 0) text += std::string("; ") + what_helps(error);
  if (error == ETIMEDOUT) text += "; the engine can only be closed";
  if (error == ETIMEDOUT && stall_.empty()) {
    stall_ = text;
    if (on_stall_) on_stall_(stall_);
  }
  throw Error(code_of(error), text, error);
}

void SwapTier::refuse_after_stall(std::string_view call) const {
  if (stall_.empty()) return;
  throw Error(
      Code::kIoStalled,
      std::string(call) +
          ": refused, since the kernel may still use the memory of an earlier transfer: " + stall_,
      ETIMEDOUT);
}

async::Task<> SwapTier::read(Extent extent, std::span<std::byte> into, Priority priority,
                             Subject subject) {
  HEADRACE_CHECK(into.size() == extent.size_bytes, "extents are read whole");
  if (!stall_.empty()) refuse_after_stall(subject.text());
  for (int attempt = 0;; ++attempt) {
    TransferDone transfer(*lanes_[extent.file]->drive, IoKind::kRead, into.data(), extent, priority,
                          subject.name->c_str());
    const Transfer& done = co_await transfer;
    if (done.error == 0 && done.done_bytes == extent.size_bytes) co_return;
    // Once more: a read changes nothing, and a bus or path may recover. What timed out does not.
    if (attempt > 0 || done.error == ETIMEDOUT) {
      fail(extent, subject, IoKind::kRead, done.done_bytes, done.error,
           attempt > 0 ? "; it failed twice" : "");
    }
    ++repeats_;
  }
}

async::Task<bool> SwapTier::try_write(const Extent& extent, std::span<const std::byte> from,
                                      Priority priority, const Subject& subject, int& error,
                                      std::uint64_t& done_bytes) {
  TransferDone transfer(*lanes_[extent.file]->drive, IoKind::kWrite,
                        const_cast<std::byte*>(from.data()), extent, priority,
                        subject.name->c_str());
  const Transfer& done = co_await transfer;
  error = done.error;
  done_bytes = done.done_bytes;
  co_return done.error == 0 && done.done_bytes == extent.size_bytes;
}

async::Task<> SwapTier::write(Extent& extent, std::span<const std::byte> from, Priority priority,
                              Subject subject) {
  HEADRACE_CHECK(from.size() == extent.size_bytes, "extents are written whole");
  if (!stall_.empty()) refuse_after_stall(subject.text());
  int error = 0;
  std::uint64_t done = 0;
  const bool first = co_await try_write(extent, from, priority, subject, error, done);
  if (first) co_return;
  // The same bytes once more on another extent: a bad spot of the drive costs a retry, not the run.
  // The bad extent is kept out of use.
  std::optional<Extent> other;
  if (error != ETIMEDOUT) other = lanes_[extent.file]->extents->allocate(extent.size_bytes);
  if (!other) fail(extent, subject, IoKind::kWrite, done, error, "");
  ++repeats_;
  int again_error = 0;
  const bool second = co_await try_write(*other, from, priority, subject, again_error, done);
  if (!second) {
    if (again_error != ETIMEDOUT) lanes_[extent.file]->extents->free(*other);
    fail(extent, subject, IoKind::kWrite, done, again_error, "; a second extent failed as well");
  }
  extent = *other;
}

DriveCounters SwapTier::totals() const noexcept {
  DriveCounters sum;
  for (const auto& lane : lanes_) {
    const DriveCounters one = lane->drive->counters();
    sum.read_bytes += one.read_bytes;
    sum.written_bytes += one.written_bytes;
    sum.reads += one.reads;
    sum.writes += one.writes;
    sum.retries += one.retries;
    sum.read_busy_seconds += one.read_busy_seconds;
    sum.write_busy_seconds += one.write_busy_seconds;
  }
  sum.retries += repeats_;
  return sum;
}

std::string SwapTier::queue_name() const {
  return lanes_.empty() ? "" : lanes_[0]->drive->queue_name();
}
std::string SwapTier::queue_reason() const {
  return lanes_.empty() ? "" : lanes_[0]->drive->queue_reason();
}

Registered SwapTier::registered() const {
  Registered all{!lanes_.empty(), !lanes_.empty(), {}};
  for (const auto& lane : lanes_) {
    const Registered one = lane->drive->registered();
    all.buffers &= one.buffers;
    all.files &= one.files;
    if (all.refused.empty()) all.refused = one.refused;
  }
  return all;
}

bool SwapTier::direct() const noexcept {
  for (const auto& lane : lanes_) {
    if (!lane->path.direct) return false;
  }
  return !lanes_.empty();
}

bool SwapTier::stalled() const noexcept {
  for (const auto& lane : lanes_) {
    if (lane->drive->stalled()) return true;
  }
  return false;
}
}  // namespace headrace::swap
