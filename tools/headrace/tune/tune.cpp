// SPDX-License-Identifier: Apache-2.0
#include "tune/tune.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "base/units.hpp"
#include "bench/announcement.hpp"
#include "bench/drive_run.hpp"
#include "bench/nothing_measured.hpp"
#include "command_line/report_file.hpp"
#include "command_line/words.hpp"
#include "headrace/error.hpp"
#include "headrace/version.hpp"
#include "platform/block_devices.hpp"
#include "platform/machine.hpp"
#include "program/engine_words.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
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
    run_ = std::make_unique<DriveRun>(as_bench(options_), report_.run);
    BenchOptions& bench = run_->options();
    options_.file_bytes = bench.file_bytes;
    if (options_.goal == Goal::kRead) bench.most_written_bytes = bench.file_bytes;
    run_->announce(out());
  }

  int run() {
    measure();
    return conclude();
  }

 private:
  // Stdout is for people, unless a document goes there.
  std::FILE* out() const { return options_.json == "-" || options_.write == "-" ? stderr : stdout; }

  void measure() {
    const double layout_seconds = run_->lay_out();
    TunerOptions tuner;
    tuner.goal = options_.goal;
    tuner.queue = options_.queue;
    tuner.file_bytes = options_.file_bytes;
    tuner.quick = options_.quick;
    // Reading all of it at the end takes about as long as writing it did.
    tuner.until_seconds = options_.most_seconds - layout_seconds;
    tuner.other_seconds = layout_seconds;
    tuner.until_written_bytes = options_.most_written_bytes;
    DriveGauge gauge(run_->runner(), run_->watch());
    const auto show = [&](const std::string& stage, std::uint32_t round,
                          const Candidate& candidate) {
      run_->line().show(fmt::format("{}: {}, {}; at most {:.0f} s left", stage, round_text(round),
                                    text_of(candidate),
                                    std::max(0.0, options_.most_seconds - gauge.seconds())));
    };
    report_.result = tune_on(gauge, tuner, show);
    run_->finish();
  }

  // headrace.tuned: the engine warns where drives or kernel differ; the rest is for readers.
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

  // A measurement on damaged data is no advice: nothing is written then.
  int conclude() {
    report_.settings = settings_fragment(report_.result.settings(), where_tuned());
    print_to(out(), "{}", report_text(report_));
    const bool whole =
        !tell_of_damage(kTuneName, report_.run.verification, ", so no settings are written");
    if (whole) {
      command_line::write_report(options_.write, dump(report_.settings), "--write",
                                 command_line::is_checked_before);
    }
    Json json = report_json(report_);
    json["exit_code"] = whole ? kDone : kFailed;
    command_line::write_report(options_.json, dump(json));
    return whole ? kDone : kFailed;
  }

  TuneOptions options_;
  TuneReport report_;
  std::unique_ptr<DriveRun> run_;
};

// Refused before anything is written. Throws command_line::Fault, Error.
void check(const TuneOptions& options) {
  command_line::check_targets_differ({{"--json", options.json}, {"--write", options.write}});
  command_line::check_report_target(options.json);
  command_line::check_report_target(options.write, "--write", command_line::is_checked_before);
  check_replaceable_settings(options.write);
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
