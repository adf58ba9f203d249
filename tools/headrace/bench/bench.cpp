// SPDX-License-Identifier: Apache-2.0
#include "bench/bench.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/sizes.hpp"
#include "bench/announcement.hpp"
#include "bench/as_fio.hpp"
#include "bench/drive_run.hpp"
#include "bench/figure_doubts.hpp"
#include "bench/fio.hpp"
#include "bench/nothing_measured.hpp"
#include "bench/options.hpp"
#include "bench/report_json.hpp"
#include "bench/report_text.hpp"
#include "bench/rounds.hpp"
#include "bench_copy/bench_copy.hpp"
#include "bench_optimizer/bench_optimizer.hpp"
#include "bench_ranks/bench_ranks.hpp"
#include "command_line/report_file.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"

namespace headrace::tools {
namespace {
void take_rounds(DriveRun& run, Measurement& measurement) {
  const BenchOptions& options = run.options();
  // Reading all of it at the end takes about as long as writing it did.
  const double layout_seconds = run.lay_out();
  RoundsOptions rounds;
  rounds.rounds = options.rounds;
  rounds.until = options.until;
  rounds.other_seconds = run.watch().seconds() + layout_seconds;
  rounds.most_seconds = options.most_seconds - rounds.other_seconds;
  rounds.most_written_bytes =
      options.most_written_bytes - std::min(options.most_written_bytes, options.file_bytes);
  rounds.compare_fio = options.compare_fio;
  const auto show = [&](std::uint32_t round, const std::string& what, double share) {
    run.line().show(fmt::format("{:3.0f} %  {}, {}, at most {:.0f} s left", 100 * share,
                                round_text(round), what, rounds.most_seconds * (1 - share)));
  };
  Rounds(run.runner(), measurement, options.workloads, rounds, show).run();
}

int measure(const BenchOptions& options, Measurement measurement) {
  // Stdout is for people, unless a document goes there.
  std::FILE* const out = options.json == "-" ? stderr : stdout;
  if (options.compare_fio) measurement.fio_version = fio_version();
  DriveRun run(options, measurement);
  run.announce(out);
  take_rounds(run, measurement);
  run.finish();
  for (std::string& text : figure_doubts(measurement, options.until.value_or(kResolvedHalfWidth)))
    measurement.warnings.push_back(std::move(text));
  print_to(out, "{}", result_text(measurement));
  command_line::write_report(options.json, dump(to_json(measurement)));
  return tell_of_damage(kBenchName, measurement.verification) ? kFailed : kDone;
}

// fio makes a file anew that is shorter than its --size: no file of the user's may be.
std::uint64_t bytes_of_existing(const std::string& path, std::uint64_t most_bytes) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return most_bytes;  // a block device
  return std::min<std::uint64_t>(most_bytes, base::align_down(bytes, base::kHugePage));
}

void print_fio_commands(const BenchOptions& options) {
  for (const std::string& path : options.paths) {
    const bool existing = !is_writable_target(path);
    const std::string file = existing ? path : path + "/fio.data";
    const std::uint64_t bytes =
        existing ? bytes_of_existing(path, options.file_bytes) : options.file_bytes;
    check_file(options, file, bytes);
    const char* const keep = existing ? " --readonly --allow_file_create=0" : "";
    for (const Workload& workload : options.workloads)
      print("{}{}\n", fio_command(workload, file, 0, bytes), keep);
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
  if (argc > 1 && std::string_view(argv[1]) == "ranks") return bench_ranks(argc - 1, argv + 1);
  return run_with_bench_options(argc, argv, [&](const BenchOptions& options) {
    const Failing failing(kBenchName, options.json);
    try {
      command_line::check_report_target(options.json);
      check_workloads(options);
      if (options.as_fio) {
        print_fio_commands(options);
        return int{kDone};
      }
      return measure(options, Measurement{begin_measurement(kBenchName, argc, argv)});
    } catch (const NothingMeasured& nothing) {
      return failing.fail(kFailed, NothingMeasured::kCode, nothing.what());
    } catch (const Error& error) {
      if (!is_lacking(options, error)) throw;
      return failing.fail(kLacking, code_name(error.code()), error.what());
    }
  });
}
}  // namespace headrace::tools
