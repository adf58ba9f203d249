// SPDX-License-Identifier: Apache-2.0
// headrace/error.hpp: the one exception that the public C++ interface throws.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace headrace {
// Add codes only at the end: the numbers are part of every language's binding.
enum class Code : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,  // a call's arguments contradict each other or the registration
  kNotFound = 2,         // a group, parameter, file or directory that does not exist
  kWrongState = 3,       // a call out of order: before freeze, after close, a lease still open
  kSettings = 4,         // settings text: syntax, unknown key, wrong type, contradiction
  kOutOfBudget = 5,      // the plan does not fit; nothing was allocated
  kIo = 6,               // a transfer failed: errno says how
  kNoSpace = 7,          // the drive has no room
  kCorrupt = 8,          // bytes read differ from the bytes written
  kIoStalled = 9,        // a transfer did not complete within its deadline
  kNotFinite = 10,       // a gradient holds NaN or infinity; nothing was updated
  kPeerLost = 11,        // another rank left, or called something else
  kInterrupted = 12,     // interrupt() was called
  kUnsupported = 13,     // known, but not served by this build, machine or version
  kFailed = 14,  // an earlier error left the engine failed: the text repeats the first cause
};

// "kIo" and so on.
const char* code_name(Code code) noexcept;
// For an error with this code before the first step. True: the request cannot be met as given
// (arguments, settings, budget, space). False: something broke. The result is false for kIo, where
// only sys_errno() shows whether the path or the drive is at fault.
bool is_refusal(Code code) noexcept;

// what(): the cause, then the consequence, then the one change that helps. It is one line, except
// for plan tables.
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text, int sys_errno = 0)
      : std::runtime_error(text), code_(code), sys_errno_(sys_errno) {}
  Code code() const noexcept { return code_; }
  // The errno of the cause, or 0.
  int sys_errno() const noexcept { return sys_errno_; }

 private:
  Code code_;
  int sys_errno_;
};
}  // namespace headrace
