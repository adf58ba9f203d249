// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace headrace::base {
void log_to_stderr(LogLevel level, std::string_view text) {
  if (level == LogLevel::kInfo) {
    const char* wanted = std::getenv("HEADRACE_LOG");
    if (wanted == nullptr || std::strcmp(wanted, "info") != 0) return;
  }
  static constexpr const char* kNames[] = {"info", "warning", "error"};
  std::string line = std::string("headrace: ") + kNames[static_cast<int>(level)] + ": ";
  line.append(text);
  line.push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
}

LogSink sink_or_stderr(LogSink sink) { return sink ? std::move(sink) : LogSink(&log_to_stderr); }
}  // namespace headrace::base
