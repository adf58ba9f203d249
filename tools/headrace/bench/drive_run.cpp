// SPDX-License-Identifier: Apache-2.0
#include "bench/drive_run.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.hpp"
#include "bench/announcement.hpp"
#include "bench/report_text.hpp"
#include "program/engine_words.hpp"
#include "program/output.hpp"

namespace headrace::tools {
DriveRun::DriveRun(BenchOptions options, Measurement& measurement)
    : options_(std::move(options)), measurement_(measurement) {
  fit_to_drives(options_, measurement_.warnings);
  RunnerOptions runner;
  runner.paths = options_.paths;
  runner.file_bytes = options_.file_bytes;
  for (const Workload& workload : options_.workloads) {
    runner.in_flight_bytes =
        std::max(runner.in_flight_bytes, in_flight_bytes(workload, options_.paths.size()));
  }
  runner.verify = options_.verify;
  runner.log = [&measurement](LogLevel, std::string_view text) {
    measurement.warnings.push_back(without_settings(std::string(text)));
  };
  runner_ = std::make_unique<Runner>(runner);
  for (const auto& target : runner_->targets()) {
    measurement_.drives.push_back(target->facts());
    check_file(options_, target->file_path(), target->size_bytes());
  }
  add_drive_warnings(measurement_);
}

void DriveRun::announce(std::FILE* out) const {
  print_to(out, "{}", head_text(measurement_));
  tell("{}", announcement(options_));
}

double DriveRun::lay_out() {
  if (!is_writable()) return 0;
  const std::uint64_t size = options_.file_bytes * options_.paths.size();
  const auto show = [&](std::uint64_t bytes) {
    line_.show(fmt::format("writing the file: {} of {}", base::format_bytes(bytes),
                           base::format_bytes(size)));
  };
  return runner_->lay_out(show).seconds;
}

void DriveRun::finish() {
  if (is_writable()) {
    runner_->verify_all([&](std::uint64_t bytes) {
      line_.show("comparing every byte: " + base::format_bytes(bytes));
    });
  }
  line_.clear();
  measurement_.verification = runner_->verification();
  measurement_.written_bytes = runner_->written_bytes();
  measurement_.seconds = watch_.seconds();
  // Said once, whichever workload it came up in.
  if (!runner_->queue_notes().empty()) measurement_.warnings.push_back(runner_->queue_notes());
}

std::string round_text(std::uint32_t round) {
  return round == 0 ? std::string("warming up") : fmt::format("round {}", round);
}

bool tell_of_damage(const char* program, const Verification& found, const char* consequence) {
  if (found.mismatches == 0) return false;
  tell(
      "{}: data read back differ from what was written, at {} places; the drive, its driver or "
      "memory damages data{}; do not train on it before it is found. First: {}\n",
      program, found.mismatches, consequence, found.first_mismatch);
  return true;
}
}  // namespace headrace::tools
