// SPDX-License-Identifier: Apache-2.0
#include "bench/bench.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>

#include "base/units.hpp"
#include "bench/announcement.hpp"
#include "bench/as_fio.hpp"
#include "bench/figure_doubts.hpp"
#include "bench/fio.hpp"
#include "bench/nothing_measured.hpp"
#include "bench/options.hpp"
#include "bench/report_format.hpp"
#include "bench/report_json.hpp"
#include "bench/report_text.hpp"
#include "bench/rounds.hpp"
#include "bench/runner.hpp"
#include "bench_copy/bench_copy.hpp"
#include "bench_optimizer/bench_optimizer.hpp"
#include "command_line/report_file.hpp"
#include "program/engine_words.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint32_t kLeastRounds = 1;  // below it a run has measured nothing

// The whole of one run.
class Bench {
 public:
  Bench(BenchOptions options, Measurement measurement)
      : options_(std::move(options)), measurement_(std::move(measurement)) {}

  int run() {
    if (options_.compare_fio) measurement_.fio_version = fio_version();
    fit_to_drives(options_, measurement_.warnings);
    const RunnerOptions runner_options = options_for_runner();
    runner_ = std::make_unique<Runner>(runner_options);
    for (const auto& target : runner_->targets()) measurement_.drives.push_back(target->facts());
    add_drive_warnings(measurement_);
    print_to(out(), "{}", head_text(measurement_));
    tell("{}", announcement(options_));
    measure();
    return report();
  }

 private:
  // Stdout is for people, unless a document goes there.
  std::FILE* out() const { return options_.json == "-" ? stderr : stdout; }

  RunnerOptions options_for_runner() const {
    RunnerOptions runner;
    runner.paths = options_.paths;
    runner.file_bytes = options_.file_bytes;
    for (const Workload& workload : options_.workloads) {
      runner.in_flight_bytes =
          std::max(runner.in_flight_bytes, in_flight_bytes(workload, options_.paths.size()));
    }
    runner.verify = options_.verify;
    runner.log = [this](LogLevel, std::string_view text) {
      measurement_log_.push_back(without_settings(std::string(text)));
    };
    return runner;
  }

  void measure() {
    ProgressLine line;
    const Stopwatch all;
    const bool writable = !measurement_.drives[0].read_only;
    double layout_seconds = 0;
    if (writable) {
      const std::uint64_t size = options_.file_bytes * options_.paths.size();
      layout_seconds =
          runner_
              ->lay_out([&](std::uint64_t bytes) {
                line.show(fmt::format("writing the file: {} of {}", base::format_bytes(bytes),
                                      base::format_bytes(size)));
              })
              .seconds;
    }
    // Reading all of it at the end takes about as long as writing it did.
    const double other_seconds = all.seconds() + layout_seconds;
    check_time_left(other_seconds);
    take_rounds(line, other_seconds);
    if (writable) {
      runner_->verify_all([&](std::uint64_t bytes) {
        line.show("comparing every byte: " + base::format_bytes(bytes));
      });
    }
    line.clear();
    measurement_.verification = runner_->verification();
    measurement_.written_bytes = runner_->written_bytes();
    measurement_.seconds = all.seconds();
    add_queue_notes();
    for (std::string& text :
         figure_doubts(measurement_, options_.until.value_or(kResolvedHalfWidth)))
      measurement_.warnings.push_back(std::move(text));
    for (std::string& text : measurement_log_) measurement_.warnings.push_back(std::move(text));
  }

  void check_time_left(double other_seconds) const {
    const auto least = [this](std::uint32_t rounds) {
      return least_seconds(options_.workloads, rounds, options_.compare_fio);
    };
    if (other_seconds + least(kLeastRounds) <= options_.most_seconds) return;
    throw NothingMeasured(fmt::format(
        "writing the file of {} and reading it back take {} s of the --runtime of {:.0f} s, which "
        "is too little for the rest; nothing was measured, and the files are gone. Give --runtime "
        "{:.0f}s, or a smaller --size",
        base::format_bytes(options_.file_bytes), three_digits(other_seconds), options_.most_seconds,
        std::ceil(1.2 * other_seconds + 1.2 * least(6))));
  }

  void take_rounds(ProgressLine& line, double other_seconds) {
    RoundsOptions rounds;
    rounds.rounds = options_.rounds;
    rounds.until = options_.until;
    rounds.most_seconds = options_.most_seconds - other_seconds;
    rounds.other_seconds = other_seconds;
    rounds.most_written_bytes =
        options_.most_written_bytes - std::min(options_.most_written_bytes, options_.file_bytes);
    rounds.compare_fio = options_.compare_fio;
    Rounds(*runner_, measurement_, options_.workloads, rounds,
           [&](std::uint32_t round, const std::string& what, double share) {
             const std::string where =
                 round == 0 ? std::string("warming up") : fmt::format("round {}", round);
             const double left = rounds.most_seconds * (1 - share);
             line.show(fmt::format("{:3.0f} %  {}, {}, at most {:.0f} s left", 100 * share, where,
                                   what, left));
           })
        .run();
  }

  // Said once, whichever workload it came up in.
  void add_queue_notes() {
    if (!runner_->queue_notes().empty()) measurement_.warnings.push_back(runner_->queue_notes());
  }

  int report() {
    print_to(out(), "{}", result_text(measurement_));
    if (!options_.json.empty())
      command_line::write_report(options_.json, dump(to_json(measurement_)));
    if (measurement_.verification.mismatches > 0) {
      tell(
          "{}: data read back differ from what was written, at {} places; the drive, "
          "its driver or memory damages data; do not train on it before it is found. First: {}\n",
          kBenchName, measurement_.verification.mismatches,
          measurement_.verification.first_mismatch);
      return kFailed;
    }
    return kDone;
  }

  BenchOptions options_;
  Measurement measurement_;
  mutable std::vector<std::string> measurement_log_;
  std::unique_ptr<Runner> runner_;
};

void print_fio_commands(const BenchOptions& options) {
  for (const std::string& path : options.paths) {
    const std::string file = is_writable_target(path) ? path + "/fio.data" : path;
    for (const Workload& workload : options.workloads) {
      print("{}\n", fio_command(workload, file, 0, options.file_bytes));
    }
  }
}

// Lacks what was asked for by name: a queue, or fio.
bool is_lacking(const BenchOptions& options, const Error& error) {
  const auto named = [](const Workload& workload) { return workload.queue != IoQueueKind::kAuto; };
  return error.code() == Code::kUnsupported &&
         (options.compare_fio || std::ranges::any_of(options.workloads, named));
}
}  // namespace

int bench(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "compare") return refuse_compare(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "optimizer")
    return bench_optimizer(argc - 1, argv + 1);
  if (argc > 1 && std::string_view(argv[1]) == "copy") return bench_copy(argc - 1, argv + 1);
  return run_with_bench_options(argc, argv, [&](const BenchOptions& options) {
    const Failing failing(kBenchName, options.json);
    try {
      command_line::check_report_target(options.json);
      check_workloads(options);
      if (options.as_fio) {
        print_fio_commands(options);
        return int{kDone};
      }
      return Bench(options, Measurement{begin_measurement(kBenchName, argc, argv)}).run();
    } catch (const NothingMeasured& nothing) {
      return failing.fail(kFailed, NothingMeasured::kCode, nothing.what());
    } catch (const Error& error) {
      if (!is_lacking(options, error)) throw;
      return failing.fail(kLacking, code_name(error.code()), error.what());
    }
  });
}
}  // namespace headrace::tools
