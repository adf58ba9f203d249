// SPDX-License-Identifier: Apache-2.0
// drives_bench.cpp: several drives together against the sum of what each does alone.
#include "bench_program.hpp"
#include "command_line/report_file.hpp"
#include "drives_options.hpp"
#include "drives_report.hpp"
#include "drives_rounds.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/run_program.hpp"
#include "swap/swap_file.hpp"

namespace headrace::tools {
namespace {
int run(const DrivesOptions& options) {
  std::FILE* const out = out_beside(options.json);
  print_to(out, "{}", head_text(options));
  const DrivesMeasurement measurement =
      measure_together(options, [&](std::uint32_t done) { show_progress(done, options.rounds); });
  print_to(out, "{}", result_text(options, measurement));
  command_line::write_report(options.json, to_json(options, measurement));
  const bool met = !options.require_sum || worst_ratio(measurement) >= *options.require_sum;
  return met ? kDone : kMissed;
}
}  // namespace

int drives_bench(int argc, const char* const* argv) {
  return run_with_drives_options(argc, argv, [](const DrivesOptions& options) {
    // Before the head is printed.
    for (const std::string& folder : options.settings.nvme_paths)
      swap::probe_path(folder, options.settings);
    return run(options);
  });
}
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("drives_bench", argc, argv, headrace::tools::drives_bench);
}
