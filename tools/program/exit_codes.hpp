// SPDX-License-Identifier: Apache-2.0
// exit_codes.hpp: exit codes of Headrace's programs; 128 + n if signal n ended one.
#pragma once

namespace headrace::tools {
enum ExitCode {
  kDone = 0,
  kFailed = 1,   // the run failed
  kRefused = 2,  // before it started: usage, settings, path
  kLacking = 3,  // the machine has not what was required by name
  kMissed = 4,   // a threshold
};
}  // namespace headrace::tools
