// SPDX-License-Identifier: Apache-2.0
#include "headrace/error.hpp"

#include "headrace/version.hpp"

#define HEADRACE_TEXT_OF(x) #x
#define HEADRACE_TEXT(x) HEADRACE_TEXT_OF(x)

namespace headrace {
const char* code_name(Code code) noexcept {
  // clang-format off
  switch (code) {
    case Code::kOk: return "kOk";
    case Code::kInvalidArgument: return "kInvalidArgument";
    case Code::kNotFound: return "kNotFound";
    case Code::kWrongState: return "kWrongState";
    case Code::kSettings: return "kSettings";
    case Code::kOutOfBudget: return "kOutOfBudget";
    case Code::kIo: return "kIo";
    case Code::kNoSpace: return "kNoSpace";
    case Code::kCorrupt: return "kCorrupt";
    case Code::kIoStalled: return "kIoStalled";
    case Code::kNotFinite: return "kNotFinite";
    case Code::kPeerLost: return "kPeerLost";
    case Code::kInterrupted: return "kInterrupted";
    case Code::kUnsupported: return "kUnsupported";
    case Code::kFailed: return "kFailed";
  }
  // clang-format on
  return "unknown code";
}

bool is_refusal(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kSettings:
    case Code::kOutOfBudget:
    case Code::kNoSpace:
    case Code::kUnsupported:
      return true;
    default:
      return false;
  }
}

const char* version() noexcept {
  return HEADRACE_TEXT(HEADRACE_VERSION_MAJOR) "." HEADRACE_TEXT(
      HEADRACE_VERSION_MINOR) "." HEADRACE_TEXT(HEADRACE_VERSION_PATCH);
}
}  // namespace headrace
