// SPDX-License-Identifier: Apache-2.0
#include "swap/swap_tier.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/file_space.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "swap/refusal.hpp"
#include "swap/transfer_done.hpp"

namespace headrace::swap {
struct SwapTier::OwnDrive : DriveOnPath {
  std::unique_ptr<ExtentAllocator> extents;
  DriveCounters before;  // of drives that have ended
};

namespace {
RunBytes to_bytes(const std::string& hex) {
  RunBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(std::strtoul(hex.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}
}  // namespace

std::string Subject::text() const {
  const std::string what = std::string(action) + " '" + (name != nullptr ? *name : "?") + "'";
  return tile == kNoTile ? what : what + " (tile " + std::to_string(tile) + ")";
}

SwapTier::SwapTier(async::Conductor& conductor, SwapTierOptions options)
    : conductor_(conductor), options_(options), on_stall_(std::move(options.on_stall)) {
  const std::string run_id = make_run_id();
  run_ = to_bytes(run_id);
  for (std::size_t d = 0; d < options.paths.size(); ++d) {
    const auto index = static_cast<std::uint32_t>(d);
    auto own = std::make_unique<OwnDrive>();
    static_cast<DriveOnPath&>(*own) =
        options.files.empty() ? make_drive_on_path(conductor, options, options.paths[d], run_id,
                                                   index, options.drive_bytes[d], "swap")
                              : make_drive_on_path(conductor, options, options.paths[d], index,
                                                   std::move(options.files[d]));
    own->extents = std::make_unique<ExtentAllocator>(index, options.drive_bytes[d]);
    drives_.push_back(std::move(own));
  }
}
SwapTier::~SwapTier() = default;

Extent SwapTier::allocate(std::uint32_t drive, std::uint64_t size_bytes) {
  if (auto extent = drives_[drive]->extents->allocate(size_bytes)) return *extent;
  throw Error(Code::kNoSpace, "no extent of " + base::format_bytes(size_bytes) + " is left in " +
                                  drives_[drive]->file->path());
}

void SwapTier::take(const Extent& extent) {
  if (extent.file < drives_.size() && drives_[extent.file]->extents->take(extent)) return;
  std::string text = "the store's commit record names " + base::format_bytes(extent.size_bytes) +
                     " at " + std::to_string(extent.offset_bytes) + " of ";
  if (extent.file >= drives_.size()) {
    text += "drive " + std::to_string(extent.file) + ", which it does not have";
  } else {
    const DriveFile& file = *drives_[extent.file]->file;
    const bool cut = extent.offset_bytes + extent.size_bytes > file.size_bytes();
    text += file.path() +
            (cut ? ", which has " + std::to_string(file.size_bytes()) + " bytes: it was truncated"
                 : ", which is not a place of its own there");
  }
  throw Error(Code::kCorrupt, text +
                                  "; nothing was written. Restore the store from a copy, or begin "
                                  "another one.");
}

std::string SwapTier::place(const Extent& extent) const {
  return drives_[extent.file]->file->path() + " at " + std::to_string(extent.offset_bytes);
}

const std::string& SwapTier::file_path(std::uint32_t drive) const {
  return drives_[drive]->file->path();
}

void SwapTier::fail(const Extent& extent, const Subject& subject, IoKind kind, std::uint64_t done,
                    int error, const char* more) {
  std::string text = subject.text() + ": " + text_of(kind) + " " +
                     std::to_string(extent.size_bytes) + " bytes of " + place(extent) + ": got " +
                     std::to_string(done);
  if (error != 0) text += ", " + base::errno_text(error);
  if (error == 0 && kind == IoKind::kRead) {
    const std::uint64_t opened_with = drives_[extent.file]->file->size_bytes();
    text += ": the file ends there; it was truncated";
    if (extent.offset_bytes + extent.size_bytes <= opened_with) text += " while in use";
  }
  end_with(text + more, error, *drives_[extent.file]);
}

// A store stays on its drives.
std::string SwapTier::what_helps_there(const OwnDrive& own, int error) {
  const bool of_a_store = own.directory == nullptr;
  if (!of_a_store || (error != ENOSPC && error != EDQUOT)) return what_helps(error);
  std::string text;
  if (const auto free = base::free_bytes(own.file->fd()))
    text = base::format_bytes_exactly(*free) + " are free there; ";
  return text +
         "free some, or take the store to a path with more room (headrace store copy) and name "
         "that in headrace.nvme_paths";
}

void SwapTier::end_with(std::string text, int error, const OwnDrive& own) {
  if (error != 0) text += "; " + what_helps_there(own, error);
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
    TransferDone transfer(*drives_[extent.file]->drive, IoKind::kRead, into.data(), extent,
                          priority, subject.name->c_str());
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
  TransferDone transfer(*drives_[extent.file]->drive, IoKind::kWrite,
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
  if (error != ETIMEDOUT) other = drives_[extent.file]->extents->allocate(extent.size_bytes);
  if (!other) fail(extent, subject, IoKind::kWrite, done, error, "");
  ++repeats_;
  const bool second = co_await try_write(*other, from, priority, subject, error, done);
  if (!second) {
    if (error != ETIMEDOUT) drives_[extent.file]->extents->free(*other);
    fail(*other, subject, IoKind::kWrite, done, error, "; another extent had failed before it");
  }
  extent = *other;
}

async::Task<> SwapTier::write_in_place(Extent extent, std::span<const std::byte> from,
                                       Priority priority, Subject subject) {
  HEADRACE_CHECK(from.size() == extent.size_bytes, "extents are written whole");
  if (!stall_.empty()) refuse_after_stall(subject.text());
  int error = 0;
  std::uint64_t done = 0;
  const bool written = co_await try_write(extent, from, priority, subject, error, done);
  if (!written) fail(extent, subject, IoKind::kWrite, done, error, "");
}

async::Task<> SwapTier::sync(Priority priority) {
  refuse_after_stall("sync");
  async::TaskGroup drives;
  for (const auto& own : drives_) {
    if (own->drive) drives.spawn(sync_drive(*own, priority));
  }
  co_await drives.join();
}

async::Task<> SwapTier::sync_drive(OwnDrive& own, Priority priority) {
  TransferDone transfer(*own.drive, IoKind::kSync, nullptr, {}, priority, "");
  const Transfer& done = co_await transfer;
  if (done.error == 0) co_return;
  end_with("sync of " + own.file->path() + ": " + base::errno_text(done.error) +
               ": what was written to it since the last successful sync may be lost; it is not "
               "repeated, since the kernel may have dropped those bytes and would report success",
           done.error, own);
}

DriveCounters SwapTier::totals() const noexcept {
  DriveCounters sum;
  for (std::size_t d = 0; d < drives_.size(); ++d) sum += counters(d);
  sum.retries += repeats_;
  return sum;
}

DriveCounters SwapTier::counters(std::size_t drive) const noexcept {
  DriveCounters all = drives_[drive]->before;
  if (drives_[drive]->drive) all += drives_[drive]->drive->counters();
  return all;
}

void SwapTier::end_drives() {
  queue_ = queue();
  for (const auto& own : drives_) {
    if (!own->drive) continue;
    own->before += own->drive->counters();
    own->drive.reset();
  }
}

void SwapTier::start_drives() {
  for (std::uint32_t d = 0; d < drives_.size(); ++d)
    if (drives_[d]->file && !drives_[d]->drive) start_drive(*drives_[d], conductor_, options_, d);
}

QueueInUse SwapTier::queue() const {
  const auto runs = [](const auto& own) { return own->drive != nullptr; };
  if (std::ranges::none_of(drives_, runs) && !queue_.name.empty()) return queue_;
  QueueInUse all{.name = {}, .reason = {}, .registered = {true, true, {}}};
  for (const auto& own : drives_) {
    if (!own->drive) continue;
    if (all.name.empty()) {
      all.name = own->drive->queue_name();
      all.reason = own->drive->queue_reason();
    }
    const Registered one = own->drive->registered();
    all.registered.buffers &= one.buffers;
    all.registered.files &= one.files;
    if (all.registered.refused.empty()) all.registered.refused = one.refused;
    all.direct &= own->path.direct;
  }
  HEADRACE_CHECK(!all.name.empty(), "a tier stores something");
  return all;
}

bool SwapTier::stalled() const noexcept {
  return std::ranges::any_of(drives_,
                             [](const auto& own) { return own->drive && own->drive->stalled(); });
}
}  // namespace headrace::swap
