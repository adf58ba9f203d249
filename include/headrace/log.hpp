// SPDX-License-Identifier: Apache-2.0
// headrace/log.hpp: where warnings go.
#pragma once
#include <functional>
#include <string_view>

namespace headrace {
enum class LogLevel { kInfo, kWarning, kError };

// Receives one line without a newline, from any engine thread, never two at a time for one engine.
// Must not throw. The default writes "headrace: warning: text" to stderr. Nothing else in the
// library prints.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;

// Whether HEADRACE_LOG lets `level` through: off, error, warning (as where it is not set) or info.
// For sinks that print; the default one asks it. Another word is refused when an engine is made.
bool log_wanted(LogLevel level) noexcept;
}  // namespace headrace
