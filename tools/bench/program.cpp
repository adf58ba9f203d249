// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>

#include "command_line/report_file.hpp"
#include "report_parts.hpp"
#include "signals.hpp"

namespace headrace::bench {
void show_progress(std::uint32_t done, std::uint32_t rounds) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal) {
    fmt::print(stderr, "\r{} of {} rounds{}", done, rounds, done == rounds ? "\n" : "");
  } else if (done < rounds) {
    fmt::print(stderr, "round {} of {}\n", done + 1, rounds);
  }
  std::fflush(stderr);
}

int Failing::fail(int exit_code, const char* code, const std::string& text) const {
  fmt::print(stderr, "{}: {}\n", name_, text);
  try {
    command_line::write_report(json_, failure_json(exit_code, code, text));
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", name_, error.what());
  }
  return exit_code;
}

int Failing::guard(const std::function<int()>& run) const {
  try {
    return run();
  } catch (const Error& error) {
    const int signal = signal_received();
    if (signal == 0)
      return fail(is_refusal(error.code()) ? kRefused : kFailed, code_name(error.code()),
                  error.what());
    return fail(128 + signal, code_name(Code::kInterrupted),
                fmt::format("ended by SIG{}; its rounds are lost, its files are gone. Measure "
                            "fewer --rounds",
                            ::sigabbrev_np(signal)));
  } catch (const std::exception& error) {
    return fail(kFailed, "kUnexpected", error.what());
  }
}
}  // namespace headrace::bench
