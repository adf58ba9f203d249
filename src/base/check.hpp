// SPDX-License-Identifier: Apache-2.0
// check.hpp: checks that end the process at a bug, also in release builds. Operating errors (I/O,
// settings, memory) are headrace::Error above the I/O threads and values below.
#pragma once

namespace headrace::base {
// Prints one "headrace:" line with file, line and the failed condition to stderr, then traps.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* why) noexcept;
}  // namespace headrace::base

// Stays on in release builds. Use it for conditions tested per tile, request or call.
#define HEADRACE_CHECK(condition, why) \
  ((condition) ? (void)0 : ::headrace::base::check_failed(__FILE__, __LINE__, #condition, why))
