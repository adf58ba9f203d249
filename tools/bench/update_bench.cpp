// SPDX-License-Identifier: Apache-2.0
// update_bench.cpp: the update phase with state on NVMe, against the drive and against memory.
#include "bench_program.hpp"
#include "command_line/report_file.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/run_program.hpp"
#include "swap/io_queue.hpp"
#include "swap/swap_file.hpp"
#include "update_options.hpp"
#include "update_report.hpp"
#include "update_rounds.hpp"

namespace headrace::tools {
namespace {
int run(const UpdateOptions& options) {
  std::FILE* const out = out_beside(options.json);
  print_to(out, "{}", head_text(options));
  const UpdateMeasurement measurement =
      measure_update(options, [&](std::uint32_t done) { show_progress(done, options.rounds); });
  print_to(out, "{}", result_text(options, measurement));
  command_line::write_report(options.json, to_json(options, measurement));
  const bool met =
      !options.require_ratio || bound_ratio(measurement).median <= *options.require_ratio;
  return met ? kDone : kMissed;
}

// A queue asked for by name is a demand on the machine.
bool has_named_queue(const UpdateOptions& options, std::string& why) {
  try {
    swap::choose_io_queue(options.settings.io_queue, {});
    return true;
  } catch (const Error& error) {
    why = error.what();
    return false;
  }
}
}  // namespace

int update_bench(int argc, const char* const* argv) {
  return run_with_update_options(argc, argv, [](const UpdateOptions& options) {
    std::string why;
    if (!has_named_queue(options, why))
      return Failing("update_bench", options.json).fail(kLacking, "kUnsupported", why);
    // Before the head is printed.
    swap::probe_path(options.folder, options.settings);
    return run(options);
  });
}
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("update_bench", argc, argv, headrace::tools::update_bench);
}
