// SPDX-License-Identifier: Apache-2.0
// runner.hpp: takes samples: a thread per drive and job, started together.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/crew.hpp"
#include "bench/measurement.hpp"
#include "pinned/arena.hpp"

namespace headrace::tools {
struct RunnerOptions {
  std::vector<std::string> paths;     // one per drive
  std::uint64_t file_bytes = 0;       // per drive; a multiple of 2 MiB
  std::uint64_t in_flight_bytes = 0;  // in_flight_bytes() of the largest workload: memory is twice
                                      // this
  Verify verify = Verify::kStamps;
  double deadline_seconds = 60;  // without any completion
  LogSink log = {};
  QueueChooser choose_queue = [](IoQueueKind kind, const swap::IoQueueOptions& options) {
    return swap::choose_io_queue(kind, options);
  };
};

// The extent of one sample.
struct Stretch {
  std::uint64_t bytes = 0;  // per drive and direction; 0: as much as `seconds` allow
  double seconds = 0;       // 0: no limit
  std::uint32_t turn = 0;   // which part of the file
};

// In memory at once for one direction, all drives.
std::uint64_t in_flight_bytes(const Workload& workload, std::size_t drives);

class Runner {
 public:
  // Makes the files and the memory. Throws headrace::Error; nothing is left behind.
  explicit Runner(const RunnerOptions& options);

  // Writes every file once, in full: nothing else is measured on blocks that were never written.
  // Not on what is only read.
  TimedSample lay_out(const Shown& shown = {});
  // Of Mover::kQueue. Throws headrace::Error kIo, kNoSpace, kIoStalled, kUnsupported,
  // kInterrupted.
  TimedSample take(const Workload& workload, const Stretch& extent, const Shown& shown = {});
  // Reads every file whole and compares every byte that we wrote last.
  void verify_all(const Shown& shown = {});
  // Another program wrote there.
  void forget(std::size_t drive, std::uint64_t offset_bytes, std::uint64_t size_bytes);
  void count_written(std::uint64_t bytes) noexcept { written_bytes_ += bytes; }

  const std::vector<std::unique_ptr<Target>>& targets() const noexcept { return targets_; }
  const Verification& verification() const noexcept { return verification_; }
  // Of the last sample: "uring, registered buffers", and why not what would be better.
  const std::string& queue_text() const noexcept { return queue_text_; }
  const std::string& queue_notes() const noexcept { return queue_notes_; }
  std::uint64_t written_bytes() const noexcept { return written_bytes_; }

 private:
  SampleThreadOptions thread_options(const Workload& workload, const Stretch& extent,
                                     std::size_t drive, std::uint32_t job) const;
  TimedSample joined(const std::vector<Job>& jobs);

  RunnerOptions options_;
  Stamps stamps_;
  std::vector<std::unique_ptr<Target>> targets_;
  pinned::Arena arena_;
  std::span<std::byte> buffers_[1];
  std::uint32_t generation_ = 0;
  std::uint64_t written_bytes_ = 0;
  Verification verification_;
  std::string queue_text_, queue_notes_;
};
}  // namespace headrace::tools
