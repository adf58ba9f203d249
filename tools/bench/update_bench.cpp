// SPDX-License-Identifier: Apache-2.0
// update_bench.cpp: the update phase with state on NVMe, against the drive and against memory.
#include <fmt/core.h>
#include <unistd.h>

#include <cstring>

#include "command_line/report_file.hpp"
#include "signals.hpp"
#include "swap/io_queue.hpp"
#include "swap/swap_file.hpp"
#include "update_options.hpp"
#include "update_report.hpp"
#include "update_rounds.hpp"

namespace headrace::bench {
namespace {
using command_line::write_report;

enum ExitCode { kDone = 0, kFailed = 1, kRefused = 2, kLacking = 3, kMissed = 4 };

void show_progress(std::uint32_t done, std::uint32_t rounds) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal) {
    fmt::print(stderr, "\r{} of {} rounds{}", done, rounds, done == rounds ? "\n" : "");
  } else if (done < rounds) {
    fmt::print(stderr, "round {} of {}\n", done + 1, rounds);
  }
  std::fflush(stderr);
}

int fail(const std::string& json, int exit_code, const char* code, const std::string& text) {
  fmt::print(stderr, "update_bench: {}\n", text);
  try {
    write_report(json, failure_json(exit_code, code, text));
  } catch (const Error& error) {
    fmt::print(stderr, "update_bench: {}\n", error.what());
  }
  return exit_code;
}

int run(const UpdateOptions& options) {
  std::FILE* const out = options.json == "-" ? stderr : stdout;
  fmt::print(out, "{}", head_text(options));
  std::fflush(out);
  const UpdateMeasurement measurement =
      measure_update(options, [&](std::uint32_t done) { show_progress(done, options.rounds); });
  fmt::print(out, "{}", result_text(options, measurement));
  write_report(options.json, to_json(options, measurement));
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
  if (!parsed.options) {
    if (parsed.exit_code != 0) return fail(parsed.json, parsed.exit_code, "kUsage", parsed.text);
    fmt::print("{}", parsed.text);
    return kDone;
  }
  std::string why;
  if (!has_named_queue(*parsed.options, why))
    return fail(parsed.json, kLacking, "kUnsupported", why);
  try {
    command_line::check_report_target(parsed.json);
  } catch (const Error& error) {
    return fail("", kRefused, code_name(error.code()), error.what());
  }
  try {
    // Before the head is printed.
    swap::probe_path(parsed.options->folder, parsed.options->settings);
    return run(*parsed.options);
  } catch (const Error& error) {
    const int signal = signal_received();
    if (signal == 0) {
      return fail(parsed.json, is_refusal(error.code()) ? kRefused : kFailed,
                  code_name(error.code()), error.what());
    }
    return fail(parsed.json, 128 + signal, code_name(Code::kInterrupted),
                fmt::format("ended by SIG{}; its rounds are lost, its files are gone. Measure "
                            "fewer --rounds",
                            ::sigabbrev_np(signal)));
  } catch (const std::exception& error) {
    return fail(parsed.json, kFailed, "kUnexpected", error.what());
  }
}
}  // namespace headrace::bench

int main(int argc, char** argv) {
  headrace::bench::install_signal_handlers();
  return headrace::bench::update_bench(argc, argv);
}
