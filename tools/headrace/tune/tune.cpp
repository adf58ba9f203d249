// SPDX-License-Identifier: Apache-2.0
#include "tune/tune.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "base/units.hpp"
#include "bench/announcement.hpp"
#include "bench/nothing_measured.hpp"
#include "bench/report_text.hpp"
#include "command_line/report_file.hpp"
#include "command_line/words.hpp"
#include "headrace/error.hpp"
#include "headrace/version.hpp"
#include "platform/block_devices.hpp"
#include "platform/machine.hpp"
#include "program/engine_words.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "tune/drive_gauge.hpp"
#include "tune/fragment.hpp"
#include "tune/options.hpp"
#include "tune/report.hpp"
#include "tune/tuner.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;

std::vector<Candidate> shapes_of(const TuneOptions& options) {
  return shape_candidates(options.queue, options.file_bytes, options.quick);
}

// The same limits in bench's words, whose announcement and room for files hold here too.
BenchOptions as_bench(const TuneOptions& options) {
  BenchOptions bench;
  bench.paths = options.paths;
  bench.file_bytes = options.file_bytes;
  bench.file_bytes_given = options.file_bytes_given;
  bench.most_seconds = options.most_seconds;
  bench.most_written_bytes = options.most_written_bytes;
  for (const Candidate& shape : shapes_of(options))
    bench.workloads.push_back(workload_of(shape, Pattern::kMixed));
  return bench;
}

// The whole of one run.
class Tune {
 public:
  Tune(TuneOptions options, Measurement run) : options_(std::move(options)) {
    report_.goal = options_.goal;
    report_.run = std::move(run);
  }

  // Makes the files and says what is going to happen.
  void prepare() {
    BenchOptions bench = as_bench(options_);
    fit_to_drives(bench, report_.run.warnings);
    options_.file_bytes = bench.file_bytes;
    if (options_.goal == Goal::kRead) bench.most_written_bytes = bench.file_bytes;
    runner_ = std::make_unique<Runner>(options_for_runner());
    for (const auto& target : runner_->targets()) report_.run.drives.push_back(target->facts());
    add_drive_warnings(report_.run);
    print_to(out(), "{}", head_text(report_.run));
    tell("{}", announcement(bench));
  }

  int run() {
    measure();
    return conclude();
  }

 private:
  // Stdout is for people, unless a document goes there.
  std::FILE* out() const {
    const bool taken =
        options_.json == "-" || options_.write == "-" || options_.write_deepspeed == "-";
    return taken ? stderr : stdout;
  }

  RunnerOptions options_for_runner() {
    RunnerOptions runner;
    runner.paths = options_.paths;
    runner.file_bytes = options_.file_bytes;
    for (const Candidate& shape : shapes_of(options_)) {
      const Workload workload = workload_of(shape, Pattern::kMixed);
      runner.in_flight_bytes =
          std::max(runner.in_flight_bytes, in_flight_bytes(workload, options_.paths.size()));
    }
    runner.log = [this](LogLevel, std::string_view text) {
      report_.run.warnings.push_back(without_settings(std::string(text)));
    };
    return runner;
  }

  void measure() {
    ProgressLine line;
    const Stopwatch all;
    const std::uint64_t size = options_.file_bytes * options_.paths.size();
    const Sample layout = runner_->lay_out([&](std::uint64_t bytes) {
      line.show(fmt::format("writing the file: {} of {}", base::format_bytes(bytes),
                            base::format_bytes(size)));
    });
    TunerOptions tuner;
    tuner.goal = options_.goal;
    tuner.queue = options_.queue;
    tuner.file_bytes = options_.file_bytes;
    tuner.quick = options_.quick;
    // Reading all of it at the end takes about as long as writing it did.
    tuner.until_seconds = options_.most_seconds - layout.seconds;
    tuner.other_seconds = layout.seconds;
    tuner.until_written_bytes = options_.most_written_bytes;
    DriveGauge gauge(*runner_, all);
    report_.result =
        tune_on(gauge, tuner,
                [&](const std::string& stage, std::uint32_t round, const Candidate& candidate) {
                  const std::string where =
                      round == 0 ? std::string("warming up") : fmt::format("round {}", round);
                  line.show(fmt::format("{}: {}, {}; at most {:.0f} s left", stage, where,
                                        text_of(candidate),
                                        std::max(0.0, options_.most_seconds - all.seconds())));
                });
    if (!runner_->queue_notes().empty()) report_.run.warnings.push_back(runner_->queue_notes());
    runner_->verify_all([&](std::uint64_t bytes) {
      line.show("comparing every byte: " + base::format_bytes(bytes));
    });
    line.clear();
    report_.run.verification = runner_->verification();
    report_.run.written_bytes = runner_->written_bytes();
    report_.run.seconds = all.seconds();
  }

  // headrace.tuned: the engine warns where drives or kernel are others; the rest is for readers.
  Json where_tuned() const {
    std::set<std::string> types;
    for (const MeasuredDrive& drive : report_.run.drives) types.insert(drive.file_system);
    std::string file_systems;
    for (const std::string& type : types) file_systems += (file_systems.empty() ? "" : ", ") + type;
    const TuneResult& result = report_.result;
    // Three digits of the megabyte say all there is.
    const auto gb = [](double rate) { return std::round(rate / 1e6) / 1e3; };
    return {{"drive_model", platform::models_text(options_.paths)},
            {"file_system", file_systems},
            {"kernel", platform::kernel_release()},
            {"date", report_.run.date},
            {"queue", result.confirmation.contestants[result.chosen].queue()},
            {"pattern", name_of(options_.goal)},
            {"gb_per_second", gb(result.rate.median)},
            {"gb_per_second_low", gb(result.rate.low)},
            {"gb_per_second_high", gb(result.rate.high)},
            {"headrace_version", version()}};
  }

  // What was measured on damaged data is no advice: nothing is written then.
  int conclude() {
    const Verification& verification = report_.run.verification;
    report_.settings = settings_fragment(report_.result.settings(), where_tuned());
    report_.deepspeed = deepspeed_fragment(report_.result.settings());
    const bool whole = verification.mismatches == 0;
    print_to(out(), "{}", report_text(report_));
    if (whole) {
      using command_line::is_checked_before;
      command_line::write_report(options_.write, dump(report_.settings), "--write",
                                 is_checked_before);
      command_line::write_report(options_.write_deepspeed, dump(report_.deepspeed),
                                 "--write-deepspeed", is_checked_before);
    } else {
      tell(
          "{}: data read back differ from what was written, at {} places; the drive, its "
          "driver or memory damages data, so no settings are written; do not train on it "
          "before it is found. First: {}\n",
          kTuneName, verification.mismatches, verification.first_mismatch);
    }
    Json json = report_json(report_);
    json["exit_code"] = whole ? kDone : kFailed;
    command_line::write_report(options_.json, dump(json));
    return whole ? kDone : kFailed;
  }

  TuneOptions options_;
  TuneReport report_;
  std::unique_ptr<Runner> runner_;
};

// Refused before anything is written. Throws command_line::Fault, Error.
void check(const TuneOptions& options) {
  using command_line::is_checked_before;
  command_line::check_targets_differ({{"--json", options.json},
                                      {"--write", options.write},
                                      {"--write-deepspeed", options.write_deepspeed}});
  command_line::check_report_target(options.json);
  command_line::check_report_target(options.write, "--write", is_checked_before);
  command_line::check_report_target(options.write_deepspeed, "--write-deepspeed",
                                    is_checked_before);
  check_replaceable_settings(options.write);
  check_replaceable_deepspeed(options.write_deepspeed);
  check_paths(options.paths);
  for (const std::string& path : options.paths) {
    if (!is_writable_target(path))
      throw Fault{path + " is no directory, and the engine's files lie in one",
                  "Name a directory on the drive"};
  }
  const std::uint64_t least =
      options.file_bytes + least_written_bytes(options.goal, shapes_of(options));
  if (options.most_written_bytes < least)
    throw Fault{fmt::format("a file of {} and the fewest rounds that say anything write at least "
                            "{} per drive, and --max-write allows {}",
                            base::format_bytes(options.file_bytes), base::format_bytes(least),
                            base::format_bytes(options.most_written_bytes)),
                fmt::format("Give --max-write {}M, or a smaller --size",
                            base::ceil_div(least, base::kMiB))};
}
}  // namespace

int tune(int argc, const char* const* argv) {
  return run_with_tune_options(argc, argv, [&](const TuneOptions& options) {
    const Failing failing(kTuneName, options.json);
    bool begun = false;
    try {
      check(options);
      Tune tune(options, Measurement{begin_measurement(kTuneName, argc, argv)});
      tune.prepare();
      begun = true;
      return tune.run();
    } catch (const NothingMeasured& nothing) {
      return failing.fail(kFailed, NothingMeasured::kCode, nothing.what());
    } catch (const Error& error) {
      if (error.code() == Code::kInterrupted) throw;
      const bool named = options.queue != IoQueueKind::kAuto;
      if (error.code() == Code::kUnsupported && named && begun)
        return failing.fail(kLacking, code_name(error.code()), error.what());
      if (begun) throw;
      return failing.fail(kRefused, code_name(error.code()), without_settings(error.what()));
    }
  });
}
}  // namespace headrace::tools
