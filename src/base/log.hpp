// SPDX-License-Identifier: Apache-2.0
// log.hpp: the destination of an engine's warnings and errors. Each engine holds its own sink;
// there is no global one.
#pragma once
#include <string_view>

#include "headrace/log.hpp"

namespace headrace::base {
// Writes "headrace: warning: text" to stderr, as one line, if HEADRACE_LOG enables that level.
void log_to_stderr(LogLevel level, std::string_view text);

// `sink` if it is set, else log_to_stderr. Throws kSettings if HEADRACE_LOG is a word that names no
// level.
LogSink sink_or_stderr(LogSink sink);
}  // namespace headrace::base
