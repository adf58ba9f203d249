// SPDX-License-Identifier: Apache-2.0
#include "bench/report_text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "base/units.hpp"
#include "bench/report_format.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kSettingsBy =
    "Settings for an engine on this drive: `headrace tune` finds them, and proves them against the "
    "defaults.";

// The properties that the rows of one table share, in the order in which the tables are printed.
auto table_key(const Workload& w) {
  return std::tuple(w.pattern, w.queue, w.jobs, w.submit_batch, !w.register_buffers);
}
auto row_key(const Workload& w) {
  return std::tuple(w.block_bytes, w.depth, w.mover, w.fio_engine);
}

// "rw, aio, 2 jobs": what its rows do not say.
std::string table_title(Workload workload) {
  workload.mover = Mover::kQueue;
  const std::string text = text_of(workload);
  const std::size_t comma = text.find(',');
  const bool mixed = workload.pattern == Pattern::kMixed;
  return std::string(name_of(workload.pattern)) +
         (comma == std::string::npos ? "" : text.substr(comma)) +
         (mixed ? ": GB/s and IOPS count what is read and what is written" : "");
}

bool has_few_rounds(const Cell& cell) { return !cell.samples.empty() && !cell.rate().bounded; }

std::string row_text(const Cell& cell, const Ceiling& ceiling) {
  const Workload& workload = cell.workload;
  const std::string begin = fmt::format("  {:>5} {:>5}  {:<12}", block_text(workload.block_bytes),
                                        workload.depth, mover_text(workload));
  if (cell.samples.empty())
    return begin + " not reached: the run was ended before its first round\n";
  const MedianInterval rate = cell.rate();
  const LatencyHistogram latency = cell.latency();
  return begin + fmt::format("{:>6}{} {:<15}{:>8}{:>7}{:>7}{:>7}{:>6}{:>9}{:>5.0f}%\n",
                             three_digits(rate.median / 1e9), has_few_rounds(cell) ? "*" : " ",
                             interval_text(rate, 1e9), three_digits(iops_of(cell)),
                             ms_text(latency.quantile_ns(0.5)), quantile_text(latency, 0.99),
                             quantile_text(latency, 0.999), ms_text(latency.max_ns()),
                             three_digits(cell.cpu_per_gb().median),
                             100 * share_of_ceiling(cell, ceiling));
}

std::string tables(const Measurement& measurement) {
  std::vector<const Cell*> cells;
  for (const Cell& cell : measurement.cells) cells.push_back(&cell);
  std::ranges::stable_sort(cells, {}, [](const Cell* cell) {
    return std::tuple_cat(table_key(cell->workload), row_key(cell->workload));
  });
  const Ceiling ceiling = ceiling_of(measurement);
  std::string text;
  bool unbounded = false;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i == 0 || table_key(cells[i]->workload) != table_key(cells[i - 1]->workload)) {
      text += fmt::format(
          "\n{}\n  {:>5} {:>5}  {:<12}{:>6}  {:<15}{:>8}{:>7}{:>7}{:>7}{:>6}{:>9}{:>6}\n",
          table_title(cells[i]->workload), "block", "depth", "by", "GB/s", "[95 %]", "IOPS",
          "p50 ms", "p99", "p99.9", "max", "CPU s/GB", "share");
    }
    text += row_text(*cells[i], ceiling);
    unbounded |= has_few_rounds(*cells[i]);
  }
  if (!cells.empty()) text += "  share: of the fastest that this run measured in that direction\n";
  if (unbounded) {
    text +=
        "  * fewer than 6 rounds bound nothing: in brackets are the slowest and the fastest of "
        "them\n";
  }
  return text;
}

// The bytes that a compared round moved, and the time that took: "16 MiB to 1 GiB in 17 to
// 126 ms".
std::string compared_amount_text(const Measurement& measurement) {
  std::uint64_t least = ~std::uint64_t{0}, most = 0;
  double shortest = 1e300, longest = 0;
  for (const Comparison& comparison : measurement.comparisons) {
    for (const std::size_t index : {comparison.ours, comparison.theirs}) {
      for (const Sample& sample : measurement.cells[index].samples) {
        least = std::min(least, sample.bytes());
        most = std::max(most, sample.bytes());
        shortest = std::min(shortest, sample.seconds);
        longest = std::max(longest, sample.seconds);
      }
    }
  }
  const std::string bytes = least == most
                                ? base::format_bytes(least)
                                : base::format_bytes(least) + " to " + base::format_bytes(most);
  return fmt::format("each moved {} per round, in {} to {} s", bytes, three_digits(shortest),
                     three_digits(longest));
}

std::string comparisons_text(const Measurement& measurement) {
  if (measurement.comparisons.empty()) return "";
  std::string text = fmt::format(
      "\ncompared, pair by pair within rounds: ratios of throughput and of CPU time per byte\n"
      "  {:<46}{:>6} {:<16}{:>6}\n",
      "", "GB/s", "[95 %]", "CPU");
  for (const Comparison& comparison : measurement.comparisons) {
    const Workload& ours = measurement.cells[comparison.ours].workload;
    const Workload& theirs = measurement.cells[comparison.theirs].workload;
    const std::string movers = mover_text(ours) + " / " + mover_text(theirs);
    text +=
        fmt::format("  {:<19} {:<25} {:>6} {:<16}{:>6}  {}\n", text_of(ours), movers,
                    fmt::format("{:.3f}", comparison.ratio.median),
                    fmt::format("[{:.3f}, {:.3f}]", comparison.ratio.low, comparison.ratio.high),
                    cpu_ratio_text(comparison), verdict_text(comparison));
  }
  return text + wrapped("  ", compared_amount_text(measurement), 2);
}

// Where several drives share the work: what each of them moved.
std::string drives_text(const Measurement& measurement) {
  std::string text;
  for (const Pattern pattern : {Pattern::kRead, Pattern::kWrite, Pattern::kMixed}) {
    const auto index = recommended(measurement, pattern);
    if (!index) continue;
    const Cell& cell = measurement.cells[*index];
    std::vector<std::uint64_t> moved(measurement.drives.size());
    double seconds = 0;
    for (const Sample& sample : cell.samples) {
      if (moved.size() < 2 || sample.drive_bytes.size() != moved.size()) return "";
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += sample.drive_bytes[i];
      seconds += sample.seconds;
    }
    text += fmt::format("  {}:\n", text_of(cell.workload));
    for (std::size_t i = 0; i < moved.size(); ++i) {
      text += fmt::format("    {:>10}  {}\n", gb_text(static_cast<double>(moved[i]) / seconds),
                          measurement.drives[i].path);
    }
  }
  return text.empty() ? "" : "\neach drive's part\n" + text;
}

}  // namespace

std::string head_text(const Measurement& measurement) {
  std::string text = fact_lines("machine", measurement.machine);
  text += fact_lines("build", measurement.build);
  text += "drives\n";
  for (const MeasuredDrive& drive : measurement.drives)
    text += fmt::format("  {:<15} {}\n", drive.path, drive_text(drive));
  if (!measurement.fio_version.empty())
    text += fmt::format("compared with\n  {:<15} {}\n", "fio", measurement.fio_version);
  return text;
}

std::string result_text(const Measurement& measurement) {
  std::string text = tables(measurement) + comparisons_text(measurement) + drives_text(measurement);
  text += "\n" + wrapped("", verification_text(measurement.verification), 2);
  text +=
      fmt::format("{} rounds in {} s, {} written in all\n", measurement.rounds,
                  three_digits(measurement.seconds), base::format_bytes(measurement.written_bytes));
  text += "\n" + wrapped("", kSettingsBy, 0);
  if (!measurement.warnings.empty()) text += "\nwarnings\n";
  for (const std::string& warning : measurement.warnings) text += wrapped("  - ", warning, 4);
  return text;
}
}  // namespace headrace::tools
