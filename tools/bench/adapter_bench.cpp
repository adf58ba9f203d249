// SPDX-License-Identifier: Apache-2.0
// adapter_bench.cpp: forward and backward through the LibTorch adapter with everything in memory,
// against LibTorch alone.
#include <fmt/core.h>

#include "adapter_options.hpp"
#include "adapter_report.hpp"
#include "adapter_rounds.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/failing.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kLost = "its rounds are lost, its files are gone. Measure fewer --rounds";

int run(const AdapterOptions& options) {
  std::FILE* const out = options.json == "-" ? stderr : stdout;
  fmt::print(out, "{}", head_text(options));
  std::fflush(out);
  const AdapterMeasurement measurement =
      measure_adapter(options, [&](std::uint32_t done) { show_progress(done, options.rounds); });
  fmt::print(out, "{}", result_text(options, measurement));
  command_line::write_report(options.json, to_json(options, measurement));
  return is_met(options, measurement) ? kDone : kMissed;
}
}  // namespace

int adapter_bench(int argc, const char* const* argv) {
  const ParsedAdapterOptions parsed = parse_adapter_options(argc, argv);
  const Failing failing("adapter_bench", parsed.json);
  if (!parsed.options) {
    if (parsed.exit_code != 0) return failing.fail(parsed.exit_code, "kUsage", parsed.text);
    fmt::print("{}", parsed.text);
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
  headrace::tools::install_signal_handlers();
  return headrace::tools::adapter_bench(argc, argv);
}
