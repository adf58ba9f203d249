// SPDX-License-Identifier: Apache-2.0
#include "bench/report_format.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
constexpr std::size_t kMostColumns = 100;
}  // namespace

std::string wrapped(const std::string& first, const std::string& text, std::size_t indent) {
  std::string lines, line = first;
  std::size_t words_in_line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (words_in_line > 0 && line.size() + 1 + (end - at) > kMostColumns) {
      lines += line + "\n";
      line = std::string(indent, ' ');
      words_in_line = 0;
    }
    line += (words_in_line++ > 0 ? " " : "") + text.substr(at, end - at);
    at = end + 1;
  }
  return lines + line + "\n";
}

double iops_of(const Cell& cell) {
  std::vector<double> values;
  for (const Sample& sample : cell.samples)
    values.push_back(static_cast<double>(sample.reads + sample.writes) / sample.seconds);
  return median_interval(std::move(values)).median;
}

std::string quantile_text(const LatencyHistogram& latency, double share) {
  const double beyond = (1 - share) * static_cast<double>(latency.count());
  return beyond < 0.9995 ? "-" : ms_text(latency.quantile_ns(share));
}
double share_of_ceiling(const Cell& cell, const Ceiling& ceiling) {
  const double most = ceiling.of(cell.workload.pattern);
  return most > 0 ? cell.rate().median / most : 0;
}

std::string verdict_text(const Comparison& comparison) {
  const MedianInterval& ratio = comparison.ratio;
  if (!ratio.bounded) return "unresolved: few rounds";
  if (!comparison.resolved) return fmt::format("unresolved: ±{:.1f} %", 100 * ratio.half_width());
  if (ratio.low > 1) return fmt::format("faster by {:.1f} %", 100 * (ratio.median - 1));
  if (ratio.high < 1) return fmt::format("slower by {:.1f} %", 100 * (1 - ratio.median));
  return "no difference";
}

std::string cpu_ratio_text(const Comparison& comparison) {
  return comparison.cpu_ratio ? three_digits(comparison.cpu_ratio->median) : "-";
}

std::string verification_text(const Verification& verification) {
  const std::string compared =
      fmt::format("{} pages of 4 KiB compared in full, {} by their stamp while measuring",
                  grouped(verification.pages), grouped(verification.stamps));
  if (verification.mismatches > 0) {
    return fmt::format(
        "MISMATCH: {} pages came back other than they were written ({}); the first: "
        "{}",
        grouped(verification.mismatches), compared, verification.first_mismatch);
  }
  if (verification.pages + verification.stamps == 0)
    return "not verified: nothing that was written was read back";
  return "verified: " + compared + ", all as written";
}

std::string drive_text(const MeasuredDrive& drive) {
  std::string text = drive.model.empty() ? "" : drive.model + ", ";
  text += drive.file_system.empty() ? "file system unknown" : drive.file_system;
  text += drive.memory_backed ? ", in memory" : drive.direct ? ", O_DIRECT" : ", no O_DIRECT";
  text += fmt::format(", {}", base::format_bytes(drive.file_bytes));
  return text + (drive.read_only ? ", read only" : "");
}
}  // namespace headrace::tools
