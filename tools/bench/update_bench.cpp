// SPDX-License-Identifier: Apache-2.0
// update_bench.cpp: the update phase with state on NVMe, against the drive and against memory.
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
constexpr const char* kLost = "its rounds are lost, its files are gone. Measure fewer --rounds";

int run(const UpdateOptions& options) {
  std::FILE* const out = options.json == "-" ? stderr : stdout;
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
  const ParsedUpdateOptions parsed = parse_update_options(argc, argv);
  const Failing failing("update_bench", parsed.json);
  if (!parsed.options) {
    if (parsed.exit_code != 0) return failing.fail(parsed.exit_code, "kUsage", parsed.text);
    print("{}", parsed.text);
    return kDone;
  }
  std::string why;
  if (!has_named_queue(*parsed.options, why)) return failing.fail(kLacking, "kUnsupported", why);
  try {
    command_line::check_report_target(parsed.json);
  } catch (const Error& error) {
    return Failing("update_bench", "").fail(kRefused, code_name(error.code()), error.what());
  }
  return failing.guard(
      [&] {
        // Before the head is printed.
        swap::probe_path(parsed.options->folder, parsed.options->settings);
        return run(*parsed.options);
      },
      kLost);
}
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("update_bench", argc, argv, headrace::tools::update_bench);
}
