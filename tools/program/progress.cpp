// SPDX-License-Identifier: Apache-2.0
#include "program/progress.hpp"

#include <fmt/core.h>
#include <unistd.h>

namespace headrace::tools {
void show_progress(std::uint32_t done, std::uint32_t rounds) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal) {
    fmt::print(stderr, "\r{} of {} rounds{}", done, rounds, done == rounds ? "\n" : "");
  } else if (done < rounds) {
    fmt::print(stderr, "round {} of {}\n", done + 1, rounds);
  }
  std::fflush(stderr);
}

ProgressLine::ProgressLine()
    : terminal_(::isatty(STDERR_FILENO) == 1), last_(std::chrono::steady_clock::now()) {}
ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    if (shown_ && now - last_ < std::chrono::milliseconds(100)) return;
    fmt::print(stderr, "\r{:.99}\033[K", text);
  } else {
    if (now - last_ < std::chrono::seconds(10)) return;
    fmt::print(stderr, "{}\n", text);
  }
  std::fflush(stderr);
  shown_ = true;
  last_ = now;
}

void ProgressLine::clear() {
  if (terminal_ && shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}
}  // namespace headrace::tools
