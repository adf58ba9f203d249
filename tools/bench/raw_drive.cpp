// SPDX-License-Identifier: Apache-2.0
#include "raw_drive.hpp"

#include <algorithm>
#include <chrono>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "program/machine.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
RawDrive::RawDrive(const RawDriveOptions& options)
    : extent_bytes_(base::align_up(options.extent_bytes, base::kIoAlignment)),
      path_(swap::probe_path(options.settings.nvme_paths.at(0), options.settings)),
      directory_(path_, swap::make_run_id(), {}),
      file_(directory_, path_, "raw.swap", base::align_up(options.file_bytes, base::kIoAlignment)),
      arena_(extent_bytes_ * options.settings.update_slots, 1),
      conductor_(async::make_conductor_asio()),
      slots_(options.settings.update_slots) {
  swap::DriveOptions drive = swap::drive_options_of(options.settings, file_);
  drive.buffers = {arena_.bytes()};
  drive.make_queue = [kind = options.settings.io_queue](const swap::IoQueueOptions& queue) {
    return swap::choose_io_queue(kind, queue);
  };
  drive_ = options.make_drive(*conductor_, std::move(drive));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].raw = this;
    slots_[i].run = &RawDrive::ended;
    slots_[i].data = arena_.range(i * extent_bytes_, extent_bytes_).data();
    slots_[i].what = "the raw drive";
  }
  start_.raw = this;
  start_.run = [](async::Work* work) noexcept {
    RawDrive& raw = *static_cast<Start*>(work)->raw;
    raw.running_ = static_cast<std::uint32_t>(raw.slots_.size());
    for (Slot& slot : raw.slots_) raw.start_next(slot);
  };
  creation_ = move(swap::IoKind::kWrite, file_.size_bytes());
}

void RawDrive::start(Slot& slot, swap::IoKind kind) noexcept {
  slot.kind = kind;
  slot.priority =
      kind == swap::IoKind::kRead ? swap::Priority::kDemand : swap::Priority::kWriteBack;
  drive_->start(slot);
}

// The next extent of the file, or the end of this slot's work.
void RawDrive::start_next(Slot& slot) noexcept {
  if (next_ < end_ && error_ == 0 && !short_ && signal_received() == 0) {
    slot.offset_bytes = next_;
    slot.size_bytes = std::min(extent_bytes_, end_ - next_);
    next_ += slot.size_bytes;
    start(slot, reads_ ? swap::IoKind::kRead : swap::IoKind::kWrite);
  } else if (--running_ == 0) {
    done_.store(true);
    done_.notify_all();
  }
}

void RawDrive::ended(async::Work* work) noexcept {
  Slot& slot = *static_cast<Slot*>(work);
  RawDrive& raw = *slot.raw;
  if (slot.error != 0) raw.error_ = slot.error;
  if (slot.done_bytes != slot.size_bytes) raw.short_ = true;
  const bool both = raw.reads_ && raw.writes_ && raw.error_ == 0 && !raw.short_;
  if (both && slot.kind == swap::IoKind::kRead) return raw.start(slot, swap::IoKind::kWrite);
  raw.start_next(slot);
}

RawDrive::Result RawDrive::move(swap::IoKind kind, std::uint64_t size_bytes) {
  const bool reads = kind == swap::IoKind::kRead;
  return run(reads, !reads, size_bytes);
}

RawDrive::Result RawDrive::rewrite(std::uint64_t size_bytes) { return run(true, true, size_bytes); }

RawDrive::Result RawDrive::run(bool reads, bool writes, std::uint64_t size_bytes) {
  reads_ = reads;
  writes_ = writes;
  next_ = 0;
  end_ = std::min(size_bytes, file_.size_bytes());
  error_ = 0;
  short_ = false;
  done_ = false;
  const double cpu = cpu_seconds();
  const auto began = std::chrono::steady_clock::now();
  conductor_->post(start_);
  conductor_->wait(done_, nullptr);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  check_signal();
  if (error_ != 0 || short_) {
    throw Error(Code::kIo,
                std::string(!writes ? "read"
                            : reads ? "rewriting"
                                    : "write") +
                    " of " + file_.path() + " failed: " +
                    (error_ != 0 ? base::errno_text(error_) : "fewer bytes than asked for") +
                    "; nothing can be compared; look at the drive (dmesg) or name another --nvme",
                error_);
  }
  return {took.count(), cpu_seconds() - cpu, end_ * (reads && writes ? 2 : 1)};
}
}  // namespace headrace::tools
