// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "bench/plots.hpp"
#include "bench/report_format.hpp"
#include "page/svg.hpp"

namespace headrace::tools {
namespace {
constexpr Frame kSeconds{
    .width = 860, .height = 270, .left = 62, .right = 836, .top = 30, .bottom = 222};

void draw_axes(Svg& svg, const Scale& x, const Scale& y) {
  for (double value = 0, step = tick_step(x.to); value <= x.to * 1.0001; value += step) {
    svg.line(x(value), kSeconds.bottom, x(value), kSeconds.bottom + 4, "axis");
    svg.text(x(value), kSeconds.bottom + 18, tick_text(value), "dim", Anchor::kMiddle);
  }
  svg.text((kSeconds.left + kSeconds.right) / 2, kSeconds.bottom + 38, "seconds", "dim",
           Anchor::kMiddle);
  for (double value = 0, step = tick_step(y.to); value <= y.to * 1.0001; value += step) {
    svg.line(kSeconds.left, y(value), kSeconds.right, y(value), "grid");
    svg.text(kSeconds.left - 6, y(value) + 4, tick_text(value), "dim", Anchor::kEnd);
  }
  svg.text(kSeconds.left - 6, kSeconds.top - 12, "GB/s", "dim", Anchor::kEnd);
}

std::string draw(const Cell& cell, const std::vector<CacheCliff>& cliffs) {
  double length = 0, most = 0;
  for (const Sample& sample : cell.samples) {
    for (const Second& second : sample.seconds_of) {
      length = std::max(length, second.at_seconds);
      if (second.seconds > 0) most = std::max(most, second.rate() / 1e9);
    }
  }
  if (length <= 0 || most <= 0) return "";
  const Scale x{0, length, kSeconds.left, kSeconds.right},
      y{0, most * 1.1, kSeconds.bottom, kSeconds.top};
  const std::string name = text_of(cell.workload);
  Svg svg(kSeconds.width, kSeconds.height, "Throughput over time of " + name);
  draw_axes(svg, x, y);
  for (const Sample& sample : cell.samples) {
    std::vector<std::pair<double, double>> line;
    for (const Second& second : sample.seconds_of) {
      if (second.seconds > 0) line.emplace_back(x(second.at_seconds), y(second.rate() / 1e9));
    }
    svg.polyline(line, "thin s1");
  }
  for (const CacheCliff& cliff : cliffs) {
    if (cliff.workload != name) continue;
    const double at = x(cliff.at_seconds);
    const bool right = at > (kSeconds.left + kSeconds.right) / 2;
    svg.line(at, kSeconds.top, at, kSeconds.bottom, "cliff");
    svg.text(
        right ? at - 6 : at + 6, kSeconds.top - 6,
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
