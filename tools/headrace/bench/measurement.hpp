// SPDX-License-Identifier: Apache-2.0
// measurement.hpp: the results of a run of `headrace bench` or `tune`, from which the reports are
// made.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/latency.hpp"
#include "bench/workload.hpp"
#include "measure/measured_on.hpp"
#include "measure/statistics.hpp"

namespace headrace::tools {
// One uninterrupted stretch of one workload.
struct Sample {
  std::uint32_t round = 0;
  double seconds = 0;      // first request submitted to last one completed
  double cpu_seconds = 0;  // user + system, of all threads that took part (fio: of its job)
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t reads = 0, writes = 0;          // requests
  std::vector<std::uint64_t> drive_bytes = {};  // moved, per drive; empty for fio

  std::uint64_t bytes() const { return read_bytes + written_bytes; }
  double bytes_per_second() const { return static_cast<double>(bytes()) / seconds; }
  double read_share() const {
    return static_cast<double>(read_bytes) / static_cast<double>(bytes());
  }
  double cpu_per_gb() const { return cpu_seconds / (static_cast<double>(bytes()) / 1e9); }
};

// As it was taken. Its latencies are joined to those of its cell: a long run has many samples.
struct TimedSample : Sample {
  LatencyHistogram read_latency, write_latency;  // of a request, submitted to completed
};

// All samples of one workload, a round each, in the order of the rounds.
struct Cell {
  Workload workload;
  std::string queue;  // what "auto" chose: "uring, registered buffers"; fio: its engine
  std::vector<Sample> samples = {};
  LatencyHistogram read_latency = {}, write_latency = {};  // of all of them

  void add(TimedSample sample);
  std::vector<double> rates() const;  // bytes per second, per round
  MedianInterval rate() const { return median_interval(rates()); }
  MedianInterval cpu_per_gb() const;
  LatencyHistogram latency() const;  // of reads and writes
};

// A place that was measured.
struct MeasuredDrive {
  std::string path;         // as given
  std::string file_system;  // "ext4"
  std::string model;        // "" unknown
  bool direct = false;      // O_DIRECT
  bool memory_backed = false;
  bool read_only = false;  // a block device or a file of the user's: nothing is written
  std::uint64_t file_bytes = 0;
};

struct Verification {
  std::uint64_t pages = 0;   // of 4 KiB, compared in full
  std::uint64_t stamps = 0;  // pages of which the stamp alone was compared, while measuring
  std::uint64_t mismatches = 0;
  std::string first_mismatch;  // "FILE at 73400320: page 17 of generation 3, where ..."
};

// A comparison of two cells, pair by pair within rounds.
struct Comparison {
  std::size_t ours = 0, theirs = 0;  // indices of cells
  MedianInterval ratio = {};         // of throughput, ours / theirs
  // Of CPU seconds per byte; none where the other's were too short to be counted.
  std::optional<MedianInterval> cpu_ratio = {};
  bool resolved = false;  // the interval's half-width is within what was asked for
};

struct Measurement : MeasuredOn {
  std::vector<MeasuredDrive> drives = {};
  std::vector<Cell> cells = {};
  std::vector<Comparison> comparisons = {};
  Verification verification = {};
  std::uint64_t written_bytes = 0;  // in all, the layout included
  double seconds = 0;               // in all
  std::uint32_t rounds = 0;
  std::string fio_version = {};  // "": not compared
};

// The fastest measured rate of reading and of writing alone in this run, and of both together: what
// the other cells are a share of. Bytes per second; 0: not measured.
struct Ceiling {
  double read = 0, write = 0, mixed = 0;
  double of(Pattern pattern) const;
};
Ceiling ceiling_of(const Measurement& measurement);

// The cell that is recommended for one pattern: of those whose interval reaches the best one's,
// that with the fewest bytes in flight. None: not measured.
std::optional<std::size_t> recommended(const Measurement& measurement, Pattern pattern);
}  // namespace headrace::tools
