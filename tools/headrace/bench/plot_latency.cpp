// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "bench/plots.hpp"
#include "bench/report_format.hpp"
#include "page/svg.hpp"

namespace headrace::tools {
namespace {
constexpr Frame kLatency{
    .width = 460, .height = 300, .left = 62, .right = 440, .top = 34, .bottom = 240};

struct Point {
  std::uint32_t depth;
  double gb_per_second;
  std::array<double, 3> ms;  // p50, p99, p99.9
};
struct Series {
  const char* name;
  const char* line;
  const char* mark;
};
constexpr std::array kSeries{Series{"p50", "curve s1", "mark s1"},
                             Series{"p99", "curve s2 dashed", "mark s2"},
                             Series{"p99.9", "curve s3 dotted", "mark s3"}};

// The cells that differ from the recommended one in depth alone, by depth.
std::vector<Point> points_of(const Measurement& measurement, const Workload& chosen) {
  std::map<std::uint32_t, Point> points;
  for (const Cell& cell : measurement.cells) {
    Workload same = cell.workload;
    same.depth = chosen.depth;
    if (cell.samples.empty() || same != chosen) continue;
    const LatencyHistogram latency = cell.latency();
    if (latency.count() == 0) continue;
    const auto ms = [&](double share) {
      return std::max(static_cast<double>(latency.quantile_ns(share)), 1.0) / 1e6;
    };
    points[cell.workload.depth] = {
        cell.workload.depth, cell.rate().median / 1e9, {ms(0.5), ms(0.99), ms(0.999)}};
  }
  std::vector<Point> list;
  for (const auto& [depth, point] : points) list.push_back(point);
  return list;
}

// Depths stand at equal distances, with what each reached below it: towards the drive's limit,
// throughput hardly grows, and points by throughput would lie on each other.
double place_of(std::size_t index, std::size_t count) {
  return kLatency.left + (kLatency.right - kLatency.left) * (static_cast<double>(index) + 0.5) /
                             static_cast<double>(count);
}

void draw_axes(Svg& svg, const std::vector<Point>& points, const Scale& y) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double x = place_of(i, points.size());
    svg.line(x, kLatency.top, x, kLatency.bottom, "grid");
    svg.text(x, kLatency.bottom + 18, std::to_string(points[i].depth), "", Anchor::kMiddle);
    svg.text(x, kLatency.bottom + 34, three_digits(points[i].gb_per_second), "dim",
             Anchor::kMiddle);
  }
  svg.text(kLatency.left - 6, kLatency.bottom + 18, "depth", "dim", Anchor::kEnd);
  svg.text(kLatency.left - 6, kLatency.bottom + 34, "GB/s", "dim", Anchor::kEnd);
  for (double power = y.from; power <= y.to * 1.0001; power *= 10) {
    for (const double part : {1.0, 2.0, 5.0}) {
      const double value = power * part;
      if (value > y.to * 1.0001) break;
      svg.line(kLatency.left, y(value), kLatency.right, y(value), "grid");
      svg.text(kLatency.left - 6, y(value) + 4, tick_text(value), "dim", Anchor::kEnd);
    }
  }
  svg.text(kLatency.left - 6, kLatency.top - 12, "ms", "dim", Anchor::kEnd);
}

std::string draw(const std::string& title, const std::vector<Point>& points) {
  double least_ms = points[0].ms[0], most_ms = 0;
  for (const Point& point : points) {
    least_ms = std::min(least_ms, point.ms[0]);
    most_ms = std::max(most_ms, point.ms[2]);
  }
  const Scale y{std::pow(10, std::floor(std::log10(least_ms))), most_ms * 1.3, kLatency.bottom,
                kLatency.top, true};
  Svg svg(kLatency.width, kLatency.height, "Latency by depth of " + title);
  draw_axes(svg, points, y);
  double legend = kLatency.left + 10;
  for (std::size_t s = 0; s < kSeries.size(); ++s) {
    std::vector<std::pair<double, double>> line;
    for (std::size_t i = 0; i < points.size(); ++i)
      line.emplace_back(place_of(i, points.size()), y(points[i].ms[s]));
    svg.polyline(line, kSeries[s].line);
    for (std::size_t i = 0; i < points.size(); ++i) {
      svg.circle(line[i].first, line[i].second, 3.5, kSeries[s].mark,
                 fmt::format("depth {}: {} {} ms at {} GB/s", points[i].depth, kSeries[s].name,
                             three_digits(points[i].ms[s]), three_digits(points[i].gb_per_second)));
    }
    svg.line(legend, kLatency.top - 16, legend + 26, kLatency.top - 16, kSeries[s].line);
    svg.text(legend + 31, kLatency.top - 12, kSeries[s].name);
    legend += 86;
  }
  return svg.done();
}
}  // namespace

std::string latency_curves(const Measurement& measurement) {
  std::string html, left_out;
  for (const Pattern pattern : measured_patterns(measurement)) {
    const Workload& chosen = measurement.cells[*recommended(measurement, pattern)].workload;
    const std::vector<Point> points = points_of(measurement, chosen);
    if (points.size() < 2) {
      left_out += fmt::format("{}{}", left_out.empty() ? "" : ", ", name_of(pattern));
      continue;
    }
    const std::string title =
        fmt::format("{} at {}", name_of(pattern), block_text(chosen.block_bytes));
    html += figure(
        draw(title, points),
        title + ": latency of a request by requests in flight, and the GB/s that these reach.");
  }
  if (html.empty() && left_out.empty()) return no_figure("Nothing was measured.");
  if (!left_out.empty()) {
    html +=
        no_figure(fmt::format("No curve of {}: it takes two depths at the recommended block "
                              "size.",
                              left_out));
  }
  return html;
}
}  // namespace headrace::tools
