// SPDX-License-Identifier: Apache-2.0
// failures.cpp: exit codes and error texts.
#include "failures.hpp"

#include <cerrno>
#include <cstring>
#include <new>

namespace train_gpt {
namespace {
// A path that cannot be used as given, as opposed to a drive that failed.
bool is_path_errno(int number) {
  switch (number) {
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOSPC:
    case EDQUOT:
    case EINVAL:
      return true;
    default:
      return false;
  }
}

bool is_refusal(const headrace::Error& error) {
  using headrace::Code;
  switch (error.code()) {
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kSettings:
    case Code::kOutOfBudget:
    case Code::kNoSpace:
    case Code::kUnsupported:
      return true;
    case Code::kIo:
      return is_path_errno(error.sys_errno());
    default:
      return false;
  }
}
}  // namespace

std::string errno_text(int number) {
  const char* name = strerrorname_np(number);
  const char* text = strerrordesc_np(number);
  if (name == nullptr) return "errno " + std::to_string(number);
  return std::string(name) + " (" + (text != nullptr ? text : "") + ")";
}

void fail(headrace::Code code, const std::string& text, int sys_errno) {
  throw headrace::Error(code, text, sys_errno);
}

int exit_code_for(const headrace::Error& error, bool running) {
  return !running && is_refusal(error) ? kRefused : kRunFailed;
}

Failure describe(const std::exception& error, bool running, int signal) {
  if (signal != 0) {
    const char* name = ::sigabbrev_np(signal);
    const auto* ours = dynamic_cast<const headrace::Error*>(&error);
    const bool said = ours != nullptr && ours->code() == headrace::Code::kInterrupted;
    return {128 + signal, headrace::code_name(headrace::Code::kInterrupted),
            "ended by SIG" + std::string(name != nullptr ? name : "?") +
                (said ? std::string(".") : std::string(": ") + error.what())};
  }
  if (const auto* ours = dynamic_cast<const headrace::Error*>(&error)) {
    return {exit_code_for(*ours, running), headrace::code_name(ours->code()), ours->what()};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {kRunFailed, "kOutOfMemory",
            "the system has no more memory; the run ended. Make the batch, the sequence or "
            "headrace.host_budget_bytes "
            "smaller."};
  }
  return {kRunFailed, "kUnexpected", error.what()};
}
}  // namespace train_gpt
