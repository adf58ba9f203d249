// SPDX-License-Identifier: Apache-2.0
#include "program/failing.hpp"

#include <fmt/core.h>

#include <cstring>

#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "headrace/version.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
Json document(const std::string& program) {
  return {{"schema_version", 1}, {"program", program}, {"version", version()}};
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int Failing::fail(int exit_code, const char* code, const std::string& text) const {
  fmt::print(stderr, "{}: {}\n", program_, text);
  Json report = document(program_);
  report["error"] = {{"exit_code", exit_code}, {"code", code}, {"message", text}};
  try {
    command_line::write_report(json_, dump(report));
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", program_, error.what());
  }
  return exit_code;
}

int Failing::guard(const std::function<int()>& run, const std::string& lost) const {
  try {
    return run();
  } catch (const Error& error) {
    const int signal = signal_received();
    if (signal == 0)
      return fail(is_refusal(error.code()) ? kRefused : kFailed, code_name(error.code()),
                  error.what());
    return fail(128 + signal, code_name(Code::kInterrupted),
                fmt::format("ended by SIG{}; {}", ::sigabbrev_np(signal), lost));
  } catch (const std::exception& error) {
    return fail(kFailed, "kUnexpected", error.what());
  }
}
}  // namespace headrace::tools
