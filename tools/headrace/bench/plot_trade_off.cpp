// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "bench/plots.hpp"
#include "bench/report_format.hpp"
#include "page/svg.hpp"

namespace headrace::tools {
namespace {
constexpr double kWidth = 860, kBegin = 230, kEnd = 700, kRow = 24;

// Of a block size, a mover and a pattern: the fastest cell.
using Rows = std::map<std::tuple<std::uint64_t, Mover, std::string, Pattern>, const Cell*>;

Rows rows_of(const Measurement& measurement) {
  Rows rows;
  for (const Cell& cell : measurement.cells) {
    const Workload& workload = cell.workload;
    if (cell.samples.empty() || is_random(workload.pattern)) continue;
    const Cell*& best =
        rows[{workload.block_bytes, workload.mover, workload.fio_engine, workload.pattern}];
    if (best == nullptr || cell.rate().median > best->rate().median) best = &cell;
  }
  return rows;
}

void draw_row(Svg& svg, const Scale& x, const Cell& cell, double y) {
  const Workload& workload = cell.workload;
  const double rate = cell.rate().median / 1e9;
  const double moved = read_rate_of(cell) + write_rate_of(cell);
  const double reading = rate * read_rate_of(cell) / moved, writing = rate - reading;
  const double middle = x(reading), height = kRow - 8;
  svg.text(
      kBegin - 8, y + height - 3,
      fmt::format("{} {} x {}", mover_text(workload), name_of(workload.pattern), workload.depth),
      "", Anchor::kEnd);
  if (reading > 0)
    svg.rect(x(0), y, middle - x(0), height, "bar1", fmt::format("read {:.3g} GB/s", reading));
  if (writing > 0.0005 * rate) {
    svg.rect(middle, y, x(rate) - middle, height, "bar2",
             fmt::format("written {:.3g} GB/s", writing));
  }
  const std::string parts =
      workload.pattern == Pattern::kMixed
          ? fmt::format(" ({} + {})", three_digits(reading), three_digits(writing))
          : "";
  svg.text(x(rate) + 6, y + height - 3, three_digits(rate) + parts);
}

std::string draw(const Rows& rows) {
  double most = 0;
  std::set<std::uint64_t> blocks;
  for (const auto& [key, cell] : rows) {
    most = std::max(most, cell->rate().median / 1e9);
    blocks.insert(std::get<0>(key));
  }
  const Scale x{0, most, kBegin, kEnd};
  const double height =
      40 + kRow * static_cast<double>(rows.size()) + 34 * static_cast<double>(blocks.size());
  Svg svg(kWidth, height, "Throughput of reading, of writing and of both at once");
  svg.rect(kBegin, 6, 14, 14, "bar1");
  svg.text(kBegin + 20, 18, "read");
  svg.rect(kBegin + 80, 6, 14, 14, "bar2");
  svg.text(kBegin + 100, 18, "written");
  double y = 30;
  std::uint64_t block = 0;
  for (const auto& [key, cell] : rows) {
    if (std::get<0>(key) != block) {
      block = std::get<0>(key);
      svg.text(kBegin, y + 20, block_text(block) + " blocks", "heading");
      svg.line(10, y + 28, kWidth - 10, y + 28, "grid");
      y += 34;
    }
    draw_row(svg, x, *cell, y);
    y += kRow;
  }
  return svg.done();
}
}  // namespace

std::string trade_off(const Measurement& measurement) {
  const Rows rows = rows_of(measurement);
  std::set<Pattern> patterns;
  for (const auto& [key, cell] : rows) patterns.insert(std::get<3>(key));
  if (patterns.size() < 2) {
    return no_figure(
        "No comparison of reading with writing: one of them alone was measured in sequence.");
  }
  return figure(draw(rows),
                "GB/s at each block size, of the fastest depth (behind the x). rw is split into "
                "what it read and what it wrote.");
}
}  // namespace headrace::tools
