// SPDX-License-Identifier: Apache-2.0
// headrace/log.hpp: where warnings go.
#pragma once
#include <functional>
#include <string_view>

namespace headrace {
enum class LogLevel { kInfo, kWarning, kError };

// Receives one line without a newline, on any engine thread, but never two lines at a time for one
// engine. Must not throw. The default writes "headrace: warning: text" to stderr. Nothing else in
// the library prints.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;

// Whether HEADRACE_LOG allows `level`. Its values are off, error, warning (the default) and info.
// The default sink uses this function, and so should every other sink that prints. Creating an
// engine fails if the variable has any other value.
bool log_wanted(LogLevel level) noexcept;
}  // namespace headrace
