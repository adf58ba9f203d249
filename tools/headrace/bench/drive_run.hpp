// SPDX-License-Identifier: Apache-2.0
// drive_run.hpp: the work of `headrace bench` and `tune` around their samples: makes the files and
// writes them once, compares every byte at the end, and reports that.
#pragma once
#include <cstdio>
#include <memory>

#include "bench/measurement.hpp"
#include "bench/options.hpp"
#include "bench/runner.hpp"
#include "program/progress.hpp"

namespace headrace::tools {
// Calls in this order: announce(), lay_out(), samples by runner(), finish().
class DriveRun {
 public:
  // Makes the files, smaller ones where `options` leaves it open. Facts and warnings go to
  // `measurement`, which outlives it. Throws headrace::Error; nothing is left behind.
  DriveRun(BenchOptions options, Measurement& measurement);

  void announce(std::FILE* out) const;
  // Leaves data that is only read as it is. Returns the seconds; reading it back takes as long.
  double lay_out();
  // Compares every byte that was written; verification and totals go to the measurement.
  void finish();

  BenchOptions& options() noexcept { return options_; }
  Runner& runner() noexcept { return *runner_; }
  ProgressLine& line() noexcept { return line_; }
  const Stopwatch& watch() const noexcept { return watch_; }

 private:
  bool is_writable() const { return !measurement_.drives[0].read_only; }

  BenchOptions options_;
  Measurement& measurement_;
  const Stopwatch watch_;
  ProgressLine line_;
  std::unique_ptr<Runner> runner_;
};

// "warming up", "round 3".
std::string round_text(std::uint32_t round);
// On stderr, where data differ. False: none do.
//   consequence  ", so no settings are written"
bool tell_of_damage(const char* program, const Verification& found, const char* consequence = "");
}  // namespace headrace::tools
