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
}  // namespace headrace::tools
