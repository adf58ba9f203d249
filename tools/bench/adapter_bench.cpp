// SPDX-License-Identifier: Apache-2.0
// adapter_bench.cpp: forward and backward through the LibTorch adapter with everything in memory,
// against LibTorch alone.
#include "adapter_options.hpp"
#include "adapter_report.hpp"
#include "adapter_rounds.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/run_program.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kLost = "its rounds are lost, its files are gone. Measure fewer --rounds";

int run(const AdapterOptions& options) {
  std::FILE* const out = options.json == "-" ? stderr : stdout;
  print_to(out, "{}", head_text(options));
  const AdapterMeasurement measurement =
      measure_adapter(options, [&](std::uint32_t done) { show_progress(done, options.rounds); });
  print_to(out, "{}", result_text(options, measurement));
  command_line::write_report(options.json, to_json(options, measurement));
  return is_met(options, measurement) ? kDone : kMissed;
}
}  // namespace

int adapter_bench(int argc, const char* const* argv) {
  const ParsedAdapterOptions parsed = parse_adapter_options(argc, argv);
  const Failing failing("adapter_bench", parsed.json);
  if (!parsed.options) {
    if (parsed.exit_code != 0) return failing.fail(parsed.exit_code, "kUsage", parsed.text);
    print("{}", parsed.text);
    return kDone;
  }
  try {
    command_line::check_report_target(parsed.json);
  } catch (const Error& error) {
    return Failing("adapter_bench", "").fail(kRefused, code_name(error.code()), error.what());
  }
  return failing.guard([&] { return run(*parsed.options); }, kLost);
}
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("adapter_bench", argc, argv, headrace::tools::adapter_bench);
}
