// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "bench/plots.hpp"
#include "bench/report_format.hpp"
#include "bench/svg.hpp"

namespace headrace::tools {
namespace {
constexpr double kWidth = 860, kHeight = 270, kLeft = 62, kRight = 836, kTop = 30, kBottom = 222;

double rate_of(const Second& second) {
  return static_cast<double>(second.read_bytes + second.written_bytes) / second.seconds / 1e9;
}

void draw_axes(Svg& svg, const Scale& x, const Scale& y) {
  for (double value = 0, step = tick_step(x.to); value <= x.to * 1.0001; value += step) {
    svg.line(x(value), kBottom, x(value), kBottom + 4, "axis");
    svg.text(x(value), kBottom + 18, tick_text(value), "dim", Anchor::kMiddle);
  }
  svg.text((kLeft + kRight) / 2, kBottom + 38, "seconds", "dim", Anchor::kMiddle);
  for (double value = 0, step = tick_step(y.to); value <= y.to * 1.0001; value += step) {
    svg.line(kLeft, y(value), kRight, y(value), "grid");
    svg.text(kLeft - 6, y(value) + 4, tick_text(value), "dim", Anchor::kEnd);
  }
  svg.text(kLeft - 6, kTop - 12, "GB/s", "dim", Anchor::kEnd);
}

std::string draw(const Cell& cell, const std::vector<CacheCliff>& cliffs) {
  double length = 0, most = 0;
  for (const Sample& sample : cell.samples) {
    for (const Second& second : sample.seconds_of) {
      length = std::max(length, second.at_seconds);
      if (second.seconds > 0) most = std::max(most, rate_of(second));
    }
  }
  if (length <= 0 || most <= 0) return "";
  const Scale x{0, length, kLeft, kRight}, y{0, most * 1.1, kBottom, kTop};
  const std::string name = text_of(cell.workload);
  Svg svg(kWidth, kHeight, "Throughput over time of " + name);
  draw_axes(svg, x, y);
  for (const Sample& sample : cell.samples) {
    std::vector<std::pair<double, double>> line;
    for (const Second& second : sample.seconds_of) {
      if (second.seconds > 0) line.emplace_back(x(second.at_seconds), y(rate_of(second)));
    }
    svg.polyline(line, "thin s1");
  }
  for (const CacheCliff& cliff : cliffs) {
    if (cliff.workload != name) continue;
    const double at = x(cliff.at_seconds);
    const bool right = at > (kLeft + kRight) / 2;
    svg.line(at, kTop, at, kBottom, "cliff");
    svg.text(
        right ? at - 6 : at + 6, kTop - 6,
        fmt::format("cache full: {} to {}", three_digits(cliff.before / 1e9), gb_text(cliff.after)),
        "cliff-text", right ? Anchor::kEnd : Anchor::kStart);
  }
  return svg.done();
}
}  // namespace

std::string throughput_over_time(const Measurement& measurement) {
  std::string html;
  for (const Cell& cell : measurement.cells) {
    const std::string svg = draw(cell, measurement.cliffs);
    if (svg.empty()) continue;
    std::string caption = text_of(cell.workload) + ": GB/s, second by second";
    const auto lines = std::ranges::count_if(
        cell.samples, [](const Sample& sample) { return !sample.seconds_of.empty(); });
    caption += lines > 1 ? ", a line per round." : ".";
    for (const CacheCliff& cliff : measurement.cliffs) {
      if (cliff.workload == text_of(cell.workload)) caption += " Here " + cliff_text(cliff) + ".";
    }
    html += figure(svg, caption);
  }
  if (!html.empty()) return html;
  return no_figure(
      "No throughput over time: headrace bench --sustained takes it second by second.");
}
}  // namespace headrace::tools
