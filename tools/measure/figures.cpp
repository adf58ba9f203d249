// SPDX-License-Identifier: Apache-2.0
#include "measure/figures.hpp"

#include <fmt/core.h>

#include <cmath>

namespace headrace::tools {
std::string three_digits(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 99.95) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.0995) return fmt::format("{:.2f}", value);
  if (size >= 0.00995) return fmt::format("{:.3f}", value);
  return fmt::format("{:.4f}", value);
}

std::string interval_text(const MedianInterval& interval, double unit) {
  return fmt::format("[{}, {}]", three_digits(interval.low / unit),
                     three_digits(interval.high / unit));
}

std::string gb_text(double bytes_per_second) {
  return three_digits(bytes_per_second / 1e9) + " GB/s";
}
std::string ms_text(std::uint64_t nanoseconds) {
  return three_digits(static_cast<double>(nanoseconds) / 1e6);
}

Json interval_json(const MedianInterval& interval) {
  return {{"median", interval.median}, {"low", interval.low},   {"high", interval.high},
          {"least", interval.least},   {"most", interval.most}, {"bounded", interval.bounded},
          {"count", interval.count}};
}
}  // namespace headrace::tools
