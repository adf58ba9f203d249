// SPDX-License-Identifier: Apache-2.0
#include "program/progress.hpp"

#include <unistd.h>

#include "program/output.hpp"

namespace headrace::tools {
void show_progress(std::uint32_t done, std::uint32_t rounds) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal) {
    tell("\r{} of {} rounds{}", done, rounds, done == rounds ? "\n" : "");
  } else if (done < rounds) {
    tell("round {} of {}\n", done + 1, rounds);
  }
}

ProgressLine::ProgressLine()
    : terminal_(::isatty(STDERR_FILENO) == 1), last_(std::chrono::steady_clock::now()) {}
ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    if (shown_ && now - last_ < std::chrono::milliseconds(100)) return;
    tell("\r{:.99}\033[K", text);
  } else {
    if (now - last_ < std::chrono::seconds(10)) return;
    tell("{}\n", text);
  }
  shown_ = true;
  last_ = now;
}

void ProgressLine::clear() {
  if (terminal_ && shown_) tell("\r\033[K");
  shown_ = false;
}
}  // namespace headrace::tools
