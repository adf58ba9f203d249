// SPDX-License-Identifier: Apache-2.0
#include "bench/report_html.hpp"

#include <fmt/core.h>

#include "base/units.hpp"
#include "bench/plots.hpp"
#include "bench/recommendation.hpp"
#include "bench/report_format.hpp"
#include "page/style.hpp"
#include "page/svg.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
std::string paragraph(const std::string& text, const char* css_class = "") {
  const bool plain = css_class[0] == '\0';
  return fmt::format("<p{}>{}</p>\n", plain ? "" : fmt::format(" class=\"{}\"", css_class),
                     escaped(text));
}

std::string section(const char* title, const std::string& body) {
  return body.empty() ? "" : fmt::format("<h2>{}</h2>\n{}", title, body);
}

// The first `left` columns are text.
std::string row(const char* element, const std::vector<std::string>& values, std::size_t left) {
  std::string html = "<tr>";
  for (std::size_t i = 0; i < values.size(); ++i) {
    html += fmt::format("<{0}{1}>{2}</{0}>", element, i < left ? " class=\"left\"" : "",
                        escaped(values[i]));
  }
  return html + "</tr>\n";
}
std::string table(const std::string& rows) {
  return "<div class=\"wide\"><table>\n" + rows + "</table></div>\n";
}

std::string rate_text(const MedianInterval& rate) {
  return fmt::format("{}{}", three_digits(rate.median / 1e9), rate.bounded ? "" : "*");
}
const char* few_rounds_note(const Measurement& measurement) {
  for (const Cell& cell : measurement.cells) {
    if (!cell.samples.empty() && !cell.rate().bounded) {
      return "* fewer than 6 rounds bound nothing: in brackets are the slowest and the fastest of "
             "them.";
    }
  }
  return "";
}

std::string warnings_html(const Measurement& measurement) {
  std::string items;
  for (const std::string& warning : measurement.warnings)
    items += "<li>" + escaped(warning) + "</li>\n";
  return items.empty()
             ? ""
             : "<div class=\"warnings\"><b>Warnings</b>\n<ul>\n" + items + "</ul></div>\n";
}

std::string head_html(const Measurement& measurement) {
  std::string html = "<h1>headrace bench</h1>\n";
  html +=
      fmt::format("<p class=\"dim\"><code>{}</code><br/>{}; {} rounds in {} s, {} written</p>\n",
                  escaped(measurement.command), escaped(measurement.date), measurement.rounds,
                  three_digits(measurement.seconds), base::format_bytes(measurement.written_bytes));
  html += paragraph(verification_text(measurement.verification),
                    measurement.verification.mismatches > 0 ? "bad" : "dim");
  return html + warnings_html(measurement);
}

std::string summary_html(const Measurement& measurement) {
  std::string rows =
      row("th", {"pattern", "block x depth", "GB/s", "[95 %]", "p50 ms", "p99 ms", "CPU s/GB"}, 2);
  const std::vector<Pattern> patterns = measured_patterns(measurement);
  for (const Pattern pattern : patterns) {
    const Cell& cell = measurement.cells[*recommended(measurement, pattern)];
    const MedianInterval rate = cell.rate();
    const LatencyHistogram latency = cell.latency();
    rows += row("td",
                {std::string(name_of(pattern)),
                 fmt::format("{} x {}", block_text(cell.workload.block_bytes), cell.workload.depth),
                 rate_text(rate), interval_text(rate, 1e9), ms_text(latency.quantile_ns(0.5)),
                 quantile_text(latency, 0.99), three_digits(cell.cpu_per_gb().median)},
                2);
  }
  if (patterns.empty()) return paragraph("Nothing was measured with the raw queue.", "none");
  return table(rows) +
         paragraph(std::string("The recommended block size and depth of each pattern. GB is 10⁹ "
                               "bytes, block sizes are powers of 2. ") +
                       few_rounds_note(measurement),
                   "dim");
}

std::string requirements_html(const Required* required) {
  if (required == nullptr) return "";
  std::string html;
  for (const Judged& judged : required->judged) {
    const std::string found =
        judged.measured
            ? fmt::format("{} ({})", value_text(judged.requirement.name, judged.found), judged.cell)
            : std::string("not measured, the run was ended before");
    html += paragraph(
        fmt::format("{}: {}: {}", judged.requirement.text, judged.met ? "met" : "MISSED", found),
        judged.met ? "" : "bad");
  }
  return html;
}

std::string settings_html(const Measurement& measurement) {
  const auto recommendation = recommendation_of(measurement);
  if (!recommendation) {
    return paragraph("None follow: " + no_recommendation_text(measurement) + ".", "none");
  }
  std::string html = "<pre>" + escaped(dump(recommendation->settings)) + "</pre>\n";
  for (const std::string& note : recommendation->notes) html += paragraph(note, "dim");
  html += paragraph(kProvenByTune, "dim");
  return html;
}

std::string comparisons_html(const Measurement& measurement) {
  if (measurement.comparisons.empty()) return "";
  std::string rows =
      row("th", {"workload", "ours", "theirs", "throughput", "[95 %]", "CPU time", ""}, 3);
  for (const Comparison& comparison : measurement.comparisons) {
    Workload ours = measurement.cells[comparison.ours].workload;
    const std::string mover = mover_text(ours);
    ours.mover = Mover::kQueue;
    rows += row("td",
                {text_of(ours), mover, mover_text(measurement.cells[comparison.theirs].workload),
                 fmt::format("{:.3f}", comparison.ratio.median),
                 fmt::format("[{:.3f}, {:.3f}]", comparison.ratio.low, comparison.ratio.high),
                 cpu_ratio_text(comparison), verdict_text(comparison)},
                3);
  }
  return table(rows) + paragraph(
                           "Ratios ours / theirs, pair by pair within rounds; of CPU time per "
                           "byte, less is better.",
                           "dim");
}

std::string cells_html(const Measurement& measurement) {
  std::string rows = row("th",
                         {"workload", "by", "GB/s", "[95 %]", "IOPS", "p50 ms", "p99", "p99.9",
                          "max", "CPU s/GB", "share"},
                         2);
  const Ceiling ceiling = ceiling_of(measurement);
  for (const Cell& cell : measurement.cells) {
    if (cell.samples.empty()) {
      rows += row("td", {text_of(cell.workload), "not reached"}, 2);
      continue;
    }
    const MedianInterval rate = cell.rate();
    const LatencyHistogram latency = cell.latency();
    rows +=
        row("td",
            {text_of(cell.workload), cell.queue, rate_text(rate), interval_text(rate, 1e9),
             grouped(static_cast<std::uint64_t>(iops_of(cell))), ms_text(latency.quantile_ns(0.5)),
             quantile_text(latency, 0.99), quantile_text(latency, 0.999), ms_text(latency.max_ns()),
             three_digits(cell.cpu_per_gb().median),
             fmt::format("{:.0f} %", 100 * share_of_ceiling(cell, ceiling))},
            2);
  }
  return table(rows) +
         paragraph(std::string("Share: of the fastest that this run measured in that direction. ") +
                       few_rounds_note(measurement),
                   "dim");
}

std::string machine_html(const Measurement& measurement) {
  std::string rows;
  const auto line = [&](const std::string& name, const std::string& value) {
    rows += fmt::format("<tr><td class=\"left\">{}</td><td class=\"left wrap\">{}</td></tr>\n",
                        escaped(name), escaped(value));
  };
  for (const MeasuredDrive& drive : measurement.drives) line(drive.path, drive_text(drive));
  for (const Fact& fact : measurement.machine) line(fact.name, fact.value);
  for (const Fact& fact : measurement.build) line(fact.name, fact.value);
  if (!measurement.fio_version.empty()) line("fio", measurement.fio_version);
  return rows.empty() ? "" : table(rows);
}
}  // namespace

std::string to_html(const Measurement& measurement, const Required* required) {
  std::string html =
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
      "<meta name=\"generator\" content=\"headrace bench\"/>\n"
      "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n"
      "<title>headrace bench";
  for (const MeasuredDrive& drive : measurement.drives) html += " " + escaped(drive.path);
  html += fmt::format("</title>\n<style>{}</style>\n</head>\n<body>\n", kHtmlStyle);
  html += head_html(measurement);
  html += section("At a glance", summary_html(measurement));
  html += section("Required", requirements_html(required));
  html += section("Settings that follow", settings_html(measurement));
  html += section("Throughput by block size and depth", heat_maps(measurement));
  html += section("Latency by depth", latency_curves(measurement));
  html += section("Reading, writing, both", trade_off(measurement));
  html += section("Throughput over time", throughput_over_time(measurement));
  html += section("Compared", comparisons_html(measurement));
  html += section("All that was measured", cells_html(measurement));
  html += section("Drives, machine, build", machine_html(measurement));
  return html + "</body>\n</html>\n";
}
}  // namespace headrace::tools
