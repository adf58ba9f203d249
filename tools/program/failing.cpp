// SPDX-License-Identifier: Apache-2.0
#include "program/failing.hpp"

#include <fmt/core.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <system_error>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "headrace/version.hpp"
#include "program/engine_words.hpp"
#include "program/output.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
// Nothing where it is not set.
std::optional<std::uint64_t> limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::string or_less(const std::string& less) {
  return less.empty() ? "" : ", or ask for less: " + less;
}

std::string memory_text(const std::string& lost, const std::string& less) {
  const auto limit = limit_of(RLIMIT_AS);
  return fmt::format(
      "memory was refused{}; {}. {}{}",
      limit ? fmt::format(", with `ulimit -v` at {}", base::format_bytes(*limit)) : "", lost,
      limit ? "Raise that limit" : "Free memory or raise the container's limit", or_less(less));
}

std::string thread_text(const std::string& lost, const std::string& less) {
  const auto limit = limit_of(RLIMIT_NPROC);
  return fmt::format(
      "no thread could be started: {}{}; {}. Raise the limit on processes (ulimit -u, or that of "
      "the container: pids.max){}",
      base::errno_text(EAGAIN), limit ? fmt::format(", with `ulimit -u` at {}", *limit) : "", lost,
      or_less(less));
}
}  // namespace

std::string unexpected_text(const std::exception& error, const std::string& lost,
                            const AskLess& less) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return memory_text(lost, less.memory);
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return thread_text(lost, less.threads);
  return fmt::format("{}; {}", error.what(), lost);
}

Json document(const std::string& program) {
  return {{"schema_version", 1}, {"program", program}, {"version", version()}};
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int Failing::fail(int exit_code, const char* code, const std::string& text) const {
  tell("{}: {}\n", program_, text);
  Json report = document(program_);
  report["error"] = {{"exit_code", exit_code}, {"code", code}, {"message", text}};
  try {
    command_line::write_report(json_, dump(report));
  } catch (const Error& error) {
    // The fault may be just that the report cannot be written.
    if (error.what() != text) tell("{}: {}\n", program_, error.what());
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
                  without_settings(error.what(), less_.memory));
    return fail(128 + signal, code_name(Code::kInterrupted),
                fmt::format("ended by SIG{}; {}", ::sigabbrev_np(signal), lost));
  } catch (const std::exception& error) {
    return fail(kFailed, "kUnexpected", unexpected_text(error, lost, less_));
  }
}
}  // namespace headrace::tools
