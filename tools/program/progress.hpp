// SPDX-License-Identifier: Apache-2.0
// progress.hpp: the progress of a program on stderr: one line that is overwritten on a terminal, a
// line now and then elsewhere.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace headrace::tools {
void show_progress(std::uint32_t done, std::uint32_t rounds);

// A line that changes: overwritten on a terminal; elsewhere printed at most every ten seconds. The
// terminal's line is cleared at the end.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  bool overwrites() const noexcept { return terminal_; }
  void show(const std::string& text);
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};
}  // namespace headrace::tools
