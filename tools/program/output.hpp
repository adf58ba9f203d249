// SPDX-License-Identifier: Apache-2.0
// output.hpp: output of a program: results to stdout, where losing them is a failure, and all else
// to stderr, where it is none.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string_view>
#include <utility>

namespace headrace::tools {
// At once, and never throws. What cannot be written is lost; of stdout, finish_output() tells.
void put(std::FILE* to, std::string_view text) noexcept;

template <class... T>
void print_to(std::FILE* to, fmt::format_string<T...> format, T&&... values) noexcept {
  try {
    put(to, fmt::format(format, std::forward<T>(values)...));
  } catch (...) {  // no memory for it
    put(to, "(a line is lost: no memory)\n");
  }
}
template <class... T>
void print(fmt::format_string<T...> format, T&&... values) noexcept {
  print_to(stdout, format, std::forward<T>(values)...);
}
template <class... T>
void tell(fmt::format_string<T...> format, T&&... values) noexcept {
  print_to(stderr, format, std::forward<T>(values)...);
}

// The exit code: kFailed, and told on stderr, where results could not be written and all else went
// well. A reader that went away (`| head -1`) is no failure.
int finish_output(const char* program, int exit_code) noexcept;

// Where descriptor 0, 1 or 2 is closed, something that can be neither read nor written takes its
// place: else the next file opened gets its number, and what is printed.
void hold_standard_descriptors() noexcept;
}  // namespace headrace::tools
