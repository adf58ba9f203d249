// SPDX-License-Identifier: Apache-2.0
#include "bench/figure_doubts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/units.hpp"

namespace headrace::tools {
namespace {
constexpr double kUnsettled = 0.2;        // half-width, of the median
constexpr double kOtherMix = 0.05;        // between two sides' read shares
constexpr double kLongestAdvice = 86400;  // seconds; what needs more is not resolved by waiting
constexpr std::size_t kBoundedFrom = 6;

using Texts = std::vector<std::string>;

std::string rows_text(std::size_t count) {
  return fmt::format("{} row{}", count, count == 1 ? "" : "s");
}

void doubt_intervals(const Measurement& m, Texts& texts) {
  std::size_t count = 0;
  double widest = 0;
  for (const Cell& cell : m.cells) {
    if (cell.samples.empty() || !cell.rate().bounded) continue;
    const double half_width = cell.rate().half_width();
    count += half_width > kUnsettled ? 1 : 0;
    widest = std::max(widest, half_width);
  }
  if (count == 0) return;
  texts.push_back(fmt::format(
      "the interval of {} is wider than ±{:.0f} %, the widest ±{:.0f} %; another run may say "
      "otherwise; wait until the drive is idle, or give --until 10% and a longer --runtime",
      rows_text(count), 100 * kUnsettled, 100 * widest));
}

double share_read(const Cell& cell) {
  double read = 0, all = 0;
  for (const Sample& sample : cell.samples) {
    read += static_cast<double>(sample.read_bytes);
    all += static_cast<double>(sample.bytes());
  }
  return read / all;
}

void doubt_mixes(const Measurement& m, Texts& texts) {
  for (const Comparison& comparison : m.comparisons) {
    const Cell &ours = m.cells[comparison.ours], &theirs = m.cells[comparison.theirs];
    const double our_share = share_read(ours), their_share = share_read(theirs);
    if (std::abs(our_share - their_share) <= kOtherMix) continue;
    texts.push_back(fmt::format(
        "{}: {:.0f} % of its bytes were read, and {:.0f} % of those of {}; their ratio "
        "is of different work; give a longer --runtime or smaller blocks, so that a "
        "round has more requests to mix",
        text_of(ours.workload), 100 * our_share, 100 * their_share, mover_text(theirs.workload)));
  }
}

// The interval narrows with the root of what is measured; six rounds bound one at all.
double needed_times(const MedianInterval& ratio, double wanted_half_width) {
  const double rounds = static_cast<double>(kBoundedFrom) /
                        static_cast<double>(std::max<std::size_t>(1, ratio.count));
  return ratio.bounded ? std::pow(ratio.half_width() / wanted_half_width, 2) : 2 * rounds;
}

void doubt_comparisons(const Measurement& m, double wanted_half_width, Texts& texts) {
  std::size_t count = 0;
  double times = 1;
  bool written = false;
  for (const Comparison& comparison : m.comparisons) {
    if (comparison.resolved) continue;
    ++count;
    times = std::max(times, needed_times(comparison.ratio, wanted_half_width));
    written |= writes(m.cells[comparison.ours].workload.pattern);
  }
  if (count == 0) return;
  const double seconds = std::ceil(times * m.seconds / 10) * 10;
  std::string text = fmt::format("{} of {} comparisons {} unresolved; ", count,
                                 m.comparisons.size(), count == 1 ? "is" : "are");
  text += seconds > kLongestAdvice
              ? std::string("no time that anybody waits would do; let nothing else use the drive")
              : fmt::format("likely enough is --until {:g}% --runtime {:.0f}s",
                            100 * wanted_half_width, seconds);
  if (written && seconds <= kLongestAdvice)
    text += fmt::format(
        " --max-write {}G",
        base::ceil_div(static_cast<std::uint64_t>(times * static_cast<double>(m.written_bytes)),
                       base::kGiB));
  texts.push_back(text);
}

}  // namespace

std::vector<std::string> figure_doubts(const Measurement& measurement, double wanted_half_width) {
  Texts texts;
  doubt_intervals(measurement, texts);
  doubt_mixes(measurement, texts);
  doubt_comparisons(measurement, wanted_half_width, texts);
  return texts;
}
}  // namespace headrace::tools
