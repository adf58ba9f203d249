// SPDX-License-Identifier: Apache-2.0
// check.hpp: bugs end here, in release too. Operating errors (I/O, settings, memory) never do: they
// are headrace::Error above the I/O threads and values below.
#pragma once

namespace headrace::base {
// Prints file, line and the failed condition with one "headrace:" line to stderr, then traps.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* why) noexcept;
}  // namespace headrace::base

// Stays on in release; for conditions tested per tile, request or call.
#define HEADRACE_CHECK(condition, why) \
  ((condition) ? (void)0 : ::headrace::base::check_failed(__FILE__, __LINE__, #condition, why))
