// SPDX-License-Identifier: Apache-2.0
// adapter_bench.cpp: forward and backward through the LibTorch adapter with everything in memory,
// against LibTorch alone.
#include "adapter_options.hpp"
#include "adapter_report.hpp"
#include "adapter_rounds.hpp"
#include "bench_program.hpp"
#include "command_line/report_file.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/run_program.hpp"

namespace headrace::tools {
namespace {
int run(const AdapterOptions& options) {
  std::FILE* const out = out_beside(options.json);
  print_to(out, "{}", head_text(options));
  const AdapterMeasurement measurement =
      measure_adapter(options, [&](std::uint32_t done) { show_progress(done, options.rounds); });
  print_to(out, "{}", result_text(options, measurement));
  command_line::write_report(options.json, to_json(options, measurement));
  return is_met(options, measurement) ? kDone : kMissed;
}
}  // namespace

int adapter_bench(int argc, const char* const* argv) {
  return run_with_adapter_options(argc, argv, run);
}
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("adapter_bench", argc, argv, headrace::tools::adapter_bench);
}
