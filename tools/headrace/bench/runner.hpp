// SPDX-License-Identifier: Apache-2.0
// runner.hpp: takes samples: a lane per drive and job, started together.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/crew.hpp"
#include "bench/engine_path.hpp"
#include "bench/measurement.hpp"
#include "bench/update_load.hpp"
#include "pinned/arena.hpp"

namespace headrace::tools {
struct RunnerOptions {
  std::vector<std::string> paths;     // one per drive
  std::uint64_t file_bytes = 0;       // per drive; a multiple of 2 MiB
  std::uint64_t in_flight_bytes = 0;  // in_flight_bytes() of the largest workload: memory is twice
                                      // this
  std::vector<int> cpus = {};         // that lanes run on, in turn; empty: anywhere
  std::uint32_t load_threads = 0;     // that saturate memory while a sample is taken
  Verify verify = Verify::kStamps;
  double deadline_seconds = 60;  // without any completion
  LogSink log = {};
  QueueChooser choose_queue = [](IoQueueKind kind, const swap::IoQueueOptions& options) {
    return swap::choose_io_queue(kind, options);
  };
};

// In memory at once for one direction, all drives.
std::uint64_t in_flight_bytes(const Workload& workload, std::size_t drives);

class Runner {
 public:
  // Makes the files and the memory. Throws headrace::Error; nothing is left behind.
  explicit Runner(const RunnerOptions& options);
  ~Runner();

  // Writes every file once, in full: nothing else is measured on blocks that were never written.
  // Not on what is only read.
  TimedSample lay_out(const Shown& shown = {});
  // Of Mover::kQueue and kEngine. Throws headrace::Error kIo, kNoSpace, kIoStalled, kUnsupported,
  // kInterrupted.
  TimedSample take(const Workload& workload, const Stretch& extent, const Shown& shown = {});
  // Reads every file whole and compares every byte that we wrote last.
  void verify_all(const Shown& shown = {});
  // Another program wrote there.
  void forget(std::size_t drive, std::uint64_t offset_bytes, std::uint64_t size_bytes);

  const std::vector<std::unique_ptr<Target>>& targets() const noexcept { return targets_; }
  const Verification& verification() const noexcept { return verification_; }
  // Of the last sample: "uring, registered buffers", and why not what would be better.
  const std::string& queue_text() const noexcept { return queue_text_; }
  const std::string& queue_notes() const noexcept { return queue_notes_; }
  std::uint64_t written_bytes() const noexcept { return written_bytes_; }

 private:
  LaneOptions lane_options(const Workload& workload, const Stretch& extent, std::size_t drive,
                           std::uint32_t job) const;
  TimedSample take_by_lanes(const Workload& workload, const Stretch& stretch, const Shown& shown);
  TimedSample take_by_engine(const Workload& workload, const Stretch& stretch);
  TimedSample joined(const std::vector<Job>& jobs);

  RunnerOptions options_;
  Stamps stamps_;
  std::vector<std::unique_ptr<Target>> targets_;
  pinned::Arena arena_;
  std::span<std::byte> buffers_[1];
  UpdateLoad load_;
  std::uint32_t generation_ = 0;
  std::uint64_t written_bytes_ = 0;
  Verification verification_;
  std::string queue_text_, queue_notes_;
};
}  // namespace headrace::tools
