// SPDX-License-Identifier: Apache-2.0
// bench_report_test: what is printed of a measurement.
#include <gtest/gtest.h>

#include <sstream>

#include "bench/report_format.hpp"
#include "bench/report_json.hpp"
#include "bench/report_text.hpp"
#include "program/report_parts.hpp"
#include "tools/bench_example.hpp"
#include "tools/expect_part.hpp"

namespace headrace::tools::bench_report_test {
namespace {
using bench_example::cell_of;
using bench_example::example;

TEST(ReportText, IsAtMostAHundredColumnsWide) {
  Measurement m = example();
  m.warnings = {std::string("a long warning ") + std::string(30, 'x') + " " + std::string(90, 'y') +
                " and more words behind it"};
  Workload other = m.cells[0].workload;
  other.mover = Mover::kFio;
  other.fio_engine = "libaio";
  m.cells.push_back(cell_of(other, {0.0123, 123.4}));
  std::istringstream lines(head_text(m) + result_text(m));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(ReportText, HasATablePerPatternWithMoversBesideEachOther) {
  const std::string text = result_text(example());
  expect_part(
      text,
      "\nread\n"
      "  block depth  by            GB/s  [95 %]             IOPS p50 ms    p99  p99.9   max "
      "CPU s/GB share\n");
  expect_part(text, "\nrw: GB/s and IOPS count what is read and what is written\n");
  const std::size_t ours = text.find("     4M     4  headrace      4.35  [4.09, 4.60]");
  const std::size_t theirs = text.find("     4M     4  fio io_uring  4.45  [4.19, 4.70]");
  EXPECT_NE(ours, std::string::npos) << text;
  EXPECT_EQ(theirs, text.find('\n', ours) + 1) << text;
}

TEST(ReportText, MarksWhatTooFewRoundsBound) {
  const std::string text = result_text(example());
  expect_part(text, "write\n");
  expect_part(text, "     4M     4  headrace      3.20* [3.10, 3.30]");
  expect_part(text, "* fewer than 6 rounds bound nothing");
  Measurement m = example();
  std::erase_if(m.cells, [](const Cell& cell) { return cell.samples.size() < 6; });
  m.comparisons.clear();
  EXPECT_EQ(result_text(m).find('*'), std::string::npos);
}

TEST(ReportText, SaysWhichCellsWereNotReached) {
  Measurement m = example();
  m.cells[2].samples.clear();
  expect_part(result_text(m),
              "     1M    16  headrace     not reached: the run was ended before its first round");
}

TEST(ReportText, SaysWhatAComparisonFoundAndWhatIsUnresolved) {
  Measurement m = example();
  const auto verdict = [&](std::vector<double> ratios, bool resolved) {
    m.comparisons[0].ratio = median_interval(std::move(ratios));
    m.comparisons[0].resolved = resolved;
    return verdict_text(m.comparisons[0]);
  };
  EXPECT_EQ(verdict({0.95, 0.96, 0.97, 0.97, 0.98, 0.99}, true), "slower by 3.0 %");
  EXPECT_EQ(verdict({1.01, 1.02, 1.03, 1.03, 1.04, 1.05}, true), "faster by 3.0 %");
  EXPECT_EQ(verdict({0.99, 1, 1, 1, 1, 1.01}, true), "no difference");
  EXPECT_EQ(verdict({0.8, 1, 1, 1, 1, 1.2}, false), "unresolved: ±20.0 %");
  EXPECT_EQ(verdict({0.5, 0.5}, true), "unresolved: few rounds");
  m = example();
  expect_part(
      result_text(m),
      "  rw 4M x 4           headrace / fio io_uring    0.977 [0.976, 0.979]    0.50  slower "
      "by 2.3 %\n");
  m.comparisons[0].cpu_ratio.reset();
  expect_part(result_text(m), "0.977 [0.976, 0.979]       -  slower by 2.3 %\n");
}

TEST(ReportText, NamesMismatchesAndWarnings) {
  Measurement m = example();
  expect_part(result_text(m), "verified: 1,234,567 pages of 4 KiB compared in full, 89 by ");
  m.verification.mismatches = 3;
  m.verification.first_mismatch = "/mnt/nvme0/f at 4096: page 1 of generation 2";
  m.warnings = {"the page cache holds the file"};
  const std::string text = result_text(m);
  expect_part(text, "MISMATCH: 3 pages came back other than they were written");
  expect_part(text, "page 1 of generation 2");
  EXPECT_TRUE(text.ends_with("warnings\n  - the page cache holds the file\n")) << text;
}

TEST(ReportText, TellsEachDrivesPart) {
  Measurement m = example();
  m.drives.push_back(m.drives[0]);
  m.drives[1].path = "/mnt/nvme1";
  for (Cell& cell : m.cells) {
    for (Sample& sample : cell.samples)
      sample.drive_bytes = {sample.bytes() / 4, sample.bytes() / 4 * 3};
  }
  const std::string text = result_text(m);
  expect_part(text, "each drive's part\n  read 4M x 16:\n     1.38 GB/s  /mnt/nvme0\n");
  expect_part(text, "     4.14 GB/s  /mnt/nvme1\n");
}

TEST(HeadText, NamesMachineBuildAndDrives) {
  Measurement m = example();
  m.cells.clear();
  m.comparisons.clear();
  const std::string text = head_text(m);
  expect_part(text, "  cpu             Some CPU\n");
  expect_part(text, "  /mnt/nvme0      ACME 990, ext4, O_DIRECT, 4 GiB\n");
  expect_part(text, "  fio             fio-3.33\n");
}

TEST(ReportText, SaysWhatARoundOfAComparisonMoved) {
  expect_part(result_text(example()),
              "\n  each moved 3.81 GiB to 4.38 GiB per round, in 1.00 to 1.00 s\n");
}

TEST(ReportText, LeavesOutAQuantileThatTooFewRequestsHave) {
  LatencyHistogram latency;
  for (int i = 0; i < 99; ++i) latency.add(1'000'000);
  EXPECT_EQ(quantile_text(latency, 0.99), "-");
  latency.add(1'000'000);
  EXPECT_EQ(quantile_text(latency, 0.99), "1.00");
  for (int i = 0; i < 899; ++i) latency.add(1'000'000);
  EXPECT_EQ(quantile_text(latency, 0.999), "-");
  latency.add(1'000'000);
  EXPECT_EQ(quantile_text(latency, 0.999), "1.00");
}

TEST(ReportFormat, IopsAreTheMedianOfTheRoundsAsGigabytesAre) {
  const Cell cell = cell_of({.depth = 16}, {1, 1, 1, 1, 40});
  EXPECT_NEAR(iops_of(cell) * (1 << 20), cell.rate().median, 1e3);
}

TEST(ReportFormat, HasThreeDigitsThatCount) {
  EXPECT_EQ(three_digits(412.4), "412");
  EXPECT_EQ(three_digits(41.24), "41.2");
  EXPECT_EQ(three_digits(9.999), "10.0");
  EXPECT_EQ(three_digits(4.124), "4.12");
  EXPECT_EQ(three_digits(0.05), "0.050");
  EXPECT_EQ(three_digits(0.00123), "0.0012");
  EXPECT_EQ(three_digits(0), "0");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1234567), "1,234,567");
}
}  // namespace
}  // namespace headrace::tools::bench_report_test
