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

int exit_code_for(const headrace::Error& error, bool running, int signal) {
  if (signal != 0) return 128 + signal;
  return !running && is_refusal(error) ? kRefused : kRunFailed;
}

Failure describe(const std::exception& error, bool running, int signal) {
  if (const auto* ours = dynamic_cast<const headrace::Error*>(&error)) {
    return {exit_code_for(*ours, running, signal), headrace::code_name(ours->code()), ours->what()};
  }
  const int exit_code = signal != 0 ? 128 + signal : kRunFailed;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {exit_code, "kOutOfMemory",
            "the system has no more memory; the run ended. Make the batch, the sequence or "
            "headrace.host_budget_bytes "
            "smaller."};
  }
  return {exit_code, "kUnexpected", error.what()};
}
}  // namespace train_gpt
