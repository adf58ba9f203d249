// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "headrace/error.hpp"

namespace headrace {
namespace {
// From the one that lets everything through; where it stands is the least level that it shows.
constexpr std::array<std::string_view, 4> kWords = {"info", "warning", "error", "off"};

std::string_view wanted_word() {
  const char* word = std::getenv("HEADRACE_LOG");
  return word == nullptr || *word == '\0' ? "warning" : word;
}
}  // namespace

bool log_wanted(LogLevel level) noexcept {
  const auto word = std::find(kWords.begin(), kWords.end(), wanted_word());
  const auto least = word == kWords.end() ? kWords.begin() + 1 : word;
  return static_cast<std::ptrdiff_t>(level) >= least - kWords.begin();
}
}  // namespace headrace

namespace headrace::base {
void log_to_stderr(LogLevel level, std::string_view text) {
  if (!log_wanted(level)) return;
  std::string line = "headrace: " + std::string(kWords[static_cast<std::size_t>(level)]) + ": ";
  line.append(text);
  line.push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
}

LogSink sink_or_stderr(LogSink sink) {
  if (std::find(kWords.begin(), kWords.end(), wanted_word()) == kWords.end()) {
    throw Error(Code::kSettings, "HEADRACE_LOG='" + std::string(wanted_word()) +
                                     "': it must be off, error, warning or info; set it so, "
                                     "or unset it");
  }
  return sink ? std::move(sink) : LogSink(&log_to_stderr);
}
}  // namespace headrace::base
