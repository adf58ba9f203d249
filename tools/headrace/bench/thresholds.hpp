// SPDX-License-Identifier: Apache-2.0
// thresholds.hpp: what --require asks of a run, and whether the run has it.
#pragma once
#include <string>
#include <vector>

#include "bench/measurement.hpp"

namespace headrace::tools {
struct Threshold {
  std::string text;  // as given: "read=6GB/s"
  std::string name;  // "read", "p99"
  double bound = 0;  // bytes/s, requests/s, ns or CPU seconds per GB, by its name
};

struct Judged {
  Threshold requirement;
  bool measured = false;  // the run was ended before
  bool met = false;
  double found = 0;  // in the bound's unit
  std::string cell;  // "read 1M x 16": where it was found
};

struct Required {
  std::vector<Judged> judged;
  bool all_met() const;
};

// "read=6GB/s,p99=20ms,cpu=0.02s/GB". read, write, randread, randwrite, rw take GB/s, MB/s, GiB/s
// or MiB/s; p50, p99, p99.9, max take s, ms, us; iops takes a number, k or M behind it; cpu takes
// s/GB or ms/GB. Throws command_line::Fault.
std::vector<Threshold> parse_thresholds(const std::string& text);

// Throws command_line::Fault where one is about something that is not going to be measured.
void check_measured(const std::vector<Threshold>& thresholds, const std::vector<Workload>& planned);

// Throughput and iops of the cell that has most of it; latency and CPU of the recommended cell for
// reading (of reading in random order, of mixed, of writing, where there is none). Of the raw queue
// alone.
Required judge(const std::vector<Threshold>& thresholds, const Measurement& measurement);

// A line each: "met     read=6GB/s: found 6.21 GB/s (read 1M x 16)".
std::string thresholds_text(const Required& required);
}  // namespace headrace::tools
