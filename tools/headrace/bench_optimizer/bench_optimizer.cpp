// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/bench_optimizer.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "bench_optimizer/contest.hpp"
#include "bench_optimizer/options.hpp"
#include "bench_optimizer/report.hpp"
#include "command_line/report_file.hpp"
#include "command_line/words.hpp"
#include "headrace/error.hpp"
#include "measure/figures.hpp"
#include "measure/measured_on.hpp"
#include "platform/machine.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;

// Smaller arrays are in caches.
constexpr std::uint64_t kLeastElements = 1 << 20;

// Default parameters that do not fit become fewer, which is a warning; those asked for are refused.
void fit_to_memory(OptimizerBenchOptions& options, std::vector<std::string>& warnings) {
  const std::vector<Stream> streams = streams_of(options.cases);
  const auto needed = [&](std::uint64_t elements) {
    return StateMemory::bytes_of(streams, elements);
  };
  const platform::Limit left = platform::memory_left();
  const std::uint64_t asked = options.elements;
  // An eighth is left to everything else.
  const auto fits = [&](std::uint64_t elements) {
    return needed(elements) <= left.value - left.value / 8;
  };
  while (!fits(options.elements) && options.elements >= 2 * kLeastElements)
    options.elements = base::align_up(options.elements / 2, base::kBlockElements);
  if (!fits(options.elements) || (options.elements_given && options.elements != asked)) {
    throw Fault{fmt::format("{} parameters of these rows need {} of memory, and {} leaves {}",
                            grouped(asked), base::format_bytes(needed(asked)), left.source,
                            base::format_bytes(left.value)),
                fits(options.elements)
                    ? fmt::format("Give --parameters {}M", options.elements >> 20)
                    : "Free memory, or name fewer rows"};
  }
  if (options.elements == asked) return;
  warnings.push_back(fmt::format(
      "{} parameters need {} of memory, and {} leaves {}; {} are measured; free some for more",
      grouped(asked), base::format_bytes(needed(asked)), left.source,
      base::format_bytes(left.value), grouped(options.elements)));
}

std::string announcement(const OptimizerBenchOptions& options) {
  const std::uint64_t bytes = StateMemory::bytes_of(streams_of(options.cases), options.elements);
  return fmt::format("This takes at most about {:.0f} s and {} of memory, for {} row{}.\n",
                     options.most_seconds, base::format_bytes(bytes), options.cases.size(),
                     options.cases.size() == 1 ? "" : "s");
}

UpdateContest measured(const OptimizerBenchOptions& options) {
  ProgressLine line;
  const ContestOptions contest{.cases = options.cases,
                               .elements = options.elements,
                               .rounds = options.rounds,
                               .most_seconds = options.most_seconds};
  return measure(contest, [&](const std::string& what, double share) {
    line.show(fmt::format("{:3.0f} %  {}", 100 * share, what));
  });
}

std::size_t rows_not_measured(const UpdateContest& contest) {
  return static_cast<std::size_t>(std::ranges::count_if(
      contest.rows, [](const UpdateRow& row) { return row.seconds.empty(); }));
}

// That the time was over before all rounds were.
std::string cut_short(const UpdateContest& contest, std::uint32_t rounds) {
  const std::size_t missing = rows_not_measured(contest);
  return fmt::format(
      "the time was over after {} of {} rounds; {}; give a longer --runtime, or "
      "fewer --parameters",
      contest.rounds, rounds,
      missing == 0 ? "intervals are wider"
                   : fmt::format("{} of {} rows were not measured", missing, contest.rows.size()));
}

int run(OptimizerBenchOptions options, MeasuredOn about) {
  std::FILE* const out = options.json == "-" ? stderr : stdout;
  command_line::check_report_target(options.json);
  fit_to_memory(options, about.warnings);
  print_to(out, "{}{}", fact_lines("machine", about.machine), fact_lines("build", about.build));
  tell("{}", announcement(options));
  const UpdateContest contest = measured(options);
  if (contest.rounds < options.rounds) about.warnings.push_back(cut_short(contest, options.rounds));
  print_to(out, "{}", contest_text(contest, options.least_share));
  for (const std::string& warning : about.warnings) print_to(out, "WARNING: {}\n", warning);
  const ExitCode code = !rows_below(contest, options.least_share).empty()   ? kMissed
                        : rows_not_measured(contest) == contest.rows.size() ? kFailed
                                                                            : kDone;
  Json report = document(kBenchOptimizerName, about);
  report["exit_code"] = static_cast<int>(code);
  report.update(contest_json(contest, options.least_share));
  report["warnings"] = about.warnings;
  command_line::write_report(options.json, dump(report));
  return code;
}
}  // namespace

int bench_optimizer(int argc, const char* const* argv) {
  return run_with_optimizer_bench_options(argc, argv, [&](const OptimizerBenchOptions& options) {
    return run(options, begin_measurement(kBenchOptimizerName, argc, argv));
  });
}
}  // namespace headrace::tools
