// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "bench/plots.hpp"
#include "bench/report_format.hpp"
#include "page/svg.hpp"

namespace headrace::tools {
namespace {
constexpr double kCellWidth = 74, kCellHeight = 34, kMapLeft = 66, kMapTop = 44;

struct Map {
  Pattern pattern;
  std::set<std::uint64_t> blocks;
  std::set<std::uint32_t> depths;
  std::map<std::pair<std::uint64_t, std::uint32_t>, const Cell*> cells;  // the fastest of each
  double least = 0, most = 0;
};

Map map_of(const Measurement& measurement, Pattern pattern) {
  Map map{.pattern = pattern, .blocks = {}, .depths = {}, .cells = {}};
  for (const Cell& cell : measurement.cells) {
    const Workload& workload = cell.workload;
    if (workload.pattern != pattern || workload.mover != Mover::kQueue || cell.samples.empty())
      continue;
    map.blocks.insert(workload.block_bytes);
    map.depths.insert(workload.depth);
    const Cell*& best = map.cells[{workload.block_bytes, workload.depth}];
    if (best == nullptr || cell.rate().median > best->rate().median) best = &cell;
  }
  for (const auto& [place, cell] : map.cells) {
    const double rate = cell->rate().median;
    map.least = map.least == 0 ? rate : std::min(map.least, rate);
    map.most = std::max(map.most, rate);
  }
  return map;
}

void draw_cell(Svg& svg, const Map& map, const Cell* cell, bool chosen, double x, double y) {
  const double middle = x + kCellWidth / 2, base = y + kCellHeight / 2 + 5;
  if (cell == nullptr) {
    svg.rect(x, y, kCellWidth - 2, kCellHeight - 2, "frame", "not measured");
    svg.text(middle, base, "–", "dim", Anchor::kMiddle);
    return;
  }
  const MedianInterval rate = cell->rate();
  const double share =
      map.most > map.least ? (rate.median - map.least) / (map.most - map.least) : 1;
  svg.rect(x, y, kCellWidth - 2, kCellHeight - 2, chosen ? "chosen" : "",
           fmt::format("{}: {} {}, {} rounds", text_of(cell->workload), gb_text(rate.median),
                       interval_text(rate, 1e9), rate.count),
           ramp_colour(share));
  svg.text(middle - 1, base, three_digits(rate.median / 1e9) + (chosen ? " ◆" : ""), "value",
           Anchor::kMiddle, ink_on_ramp(share));
}

void draw_legend(Svg& svg, const Map& map, double y) {
  constexpr int kSteps = 24;
  constexpr double kWidth = 144;
  svg.text(kMapLeft, y + 12, three_digits(map.least / 1e9), "dim", Anchor::kEnd);
  for (int i = 0; i < kSteps; ++i) {
    svg.rect(kMapLeft + 6 + i * kWidth / kSteps, y, kWidth / kSteps + 0.5, 14, "", "",
             ramp_colour(static_cast<double>(i) / (kSteps - 1)));
  }
  svg.text(kMapLeft + kWidth + 12, y + 12, gb_text(map.most), "dim");
}

std::string draw(const Map& map, const Workload& chosen) {
  const double width =
      std::max(kMapLeft + kCellWidth * static_cast<double>(map.depths.size()), 320.0);
  const double bottom = kMapTop + kCellHeight * static_cast<double>(map.blocks.size());
  Svg svg(
      width, bottom + 34,
      fmt::format("Heat map of throughput of {} by block size and depth", name_of(map.pattern)));
  svg.text(kMapLeft, 14, "requests in flight", "dim");
  svg.text(kMapLeft - 10, kMapTop - 8, "block", "dim", Anchor::kEnd);
  double x = kMapLeft;
  for (const std::uint32_t depth : map.depths) {
    svg.text(x + kCellWidth / 2, kMapTop - 8, std::to_string(depth), "", Anchor::kMiddle);
    x += kCellWidth;
  }
  double y = kMapTop;
  for (const std::uint64_t block : map.blocks) {
    svg.text(kMapLeft - 10, y + kCellHeight / 2 + 5, block_text(block), "", Anchor::kEnd);
    x = kMapLeft;
    for (const std::uint32_t depth : map.depths) {
      const auto found = map.cells.find({block, depth});
      const Cell* const cell = found == map.cells.end() ? nullptr : found->second;
      draw_cell(svg, map, cell, block == chosen.block_bytes && depth == chosen.depth, x, y);
      x += kCellWidth;
    }
    y += kCellHeight;
  }
  draw_legend(svg, map, bottom + 10);
  return svg.done();
}
}  // namespace

std::string figure(const std::string& svg, const std::string& caption) {
  return "<figure>\n" + svg + "<figcaption>" + escaped(caption) + "</figcaption>\n</figure>\n";
}
std::string no_figure(const std::string& sentence) {
  return "<p class=\"none\">" + escaped(sentence) + "</p>\n";
}

std::vector<Pattern> measured_patterns(const Measurement& measurement) {
  std::set<Pattern> patterns;
  for (const Cell& cell : measurement.cells) {
    if (!cell.samples.empty() && cell.workload.mover == Mover::kQueue)
      patterns.insert(cell.workload.pattern);
  }
  return {patterns.begin(), patterns.end()};
}

std::string heat_maps(const Measurement& measurement) {
  std::string html, left_out;
  for (const Pattern pattern : measured_patterns(measurement)) {
    const Map map = map_of(measurement, pattern);
    if (map.blocks.size() < 2 || map.depths.size() < 2) {
      left_out += fmt::format("{}{}", left_out.empty() ? "" : ", ", name_of(pattern));
      continue;
    }
    const Workload& chosen = measurement.cells[*recommended(measurement, pattern)].workload;
    html += figure(draw(map, chosen),
                   fmt::format("{}: GB/s, median of rounds. ◆ is recommended: of those as fast as "
                               "the fastest, the one with the fewest bytes in flight.",
                               name_of(pattern)));
  }
  if (html.empty() && left_out.empty()) return no_figure("Nothing was measured.");
  if (!left_out.empty()) {
    html +=
        no_figure(fmt::format("No map of {}: it takes two block sizes and two depths.", left_out));
  }
  return html;
}
}  // namespace headrace::tools
