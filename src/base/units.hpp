// SPDX-License-Identifier: Apache-2.0
// units.hpp: sizes, alignment, and byte counts as text for people.
#pragma once
#include <cstdint>
#include <string>

namespace headrace::base {
inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;
// Every swap extent and I/O buffer is a multiple of this; drives require 512 or 4096.
inline constexpr std::uint64_t kIoAlignment = 4096;
inline constexpr std::uint64_t kHugePage = 2 * kMiB;

constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t by) {
  return (value + by - 1) / by;
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t to) {
  return ceil_div(value, to) * to;
}
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t to) {
  return value / to * to;
}

// "1.25 GiB", "640 KiB", "17 B".
std::string format_bytes(std::uint64_t bytes);

// "40 MiB", or if rounded "40.02 MiB (41963520 bytes)": different values look different.
std::string format_bytes_exactly(std::uint64_t bytes);

// As written in a text: "-1e-09", whatever the locale, where std::to_string() gives "-0.000000".
std::string format_number(double value);
}  // namespace headrace::base
