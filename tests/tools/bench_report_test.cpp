// SPDX-License-Identifier: Apache-2.0
// bench_report_test: what is printed of a measurement, and the settings that follow from it.
#include <gtest/gtest.h>

#include <sstream>

#include "bench/recommendation.hpp"
#include "bench/report_format.hpp"
#include "bench/report_json.hpp"
#include "bench/report_text.hpp"
#include "headrace/settings.hpp"
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
  m.cliffs.push_back({"write 4M x 4", 12.34, 34ull << 30, 5.2e9, 1.1e9});
  Workload other = m.cells[0].workload;
  other.mover = Mover::kFio;
  other.fio_engine = "libaio";
  m.cells.push_back(cell_of(other, {0.0123, 123.4}));
  std::istringstream lines(head_text(m) + result_text(m, nullptr));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(ReportText, HasATablePerPatternWithMoversBesideEachOther) {
  const std::string text = result_text(example(), nullptr);
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
  const std::string text = result_text(example(), nullptr);
  expect_part(text, "write\n");
  expect_part(text, "     4M     4  headrace      3.20* [3.10, 3.30]");
  expect_part(text, "* fewer than 6 rounds bound nothing");
  Measurement m = example();
  std::erase_if(m.cells, [](const Cell& cell) { return cell.samples.size() < 6; });
  m.comparisons.clear();
  EXPECT_EQ(result_text(m, nullptr).find('*'), std::string::npos);
}

TEST(ReportText, SaysWhichCellsWereNotReached) {
  Measurement m = example();
  m.cells[2].samples.clear();
  expect_part(result_text(m, nullptr),
              "     1M    16  headrace     not reached: the run was ended before its first round");
  for (Cell& cell : m.cells) cell.samples.clear();
  m.comparisons.clear();
  expect_part(result_text(m, nullptr), "none follow");
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
      result_text(m, nullptr),
      "  rw 4M x 4           headrace / fio io_uring    0.977 [0.976, 0.979]    0.50  slower "
      "by 2.3 %\n");
  m.comparisons[0].cpu_ratio.reset();
  expect_part(result_text(m, nullptr), "0.977 [0.976, 0.979]       -  slower by 2.3 %\n");
}

TEST(ReportText, NamesMismatchesCliffsRequirementsAndWarnings) {
  Measurement m = example();
  expect_part(result_text(m, nullptr),
              "verified: 1,234,567 pages of 4 KiB compared in full, 89 by ");
  m.verification.mismatches = 3;
  m.verification.first_mismatch = "/mnt/nvme0/f at 4096: page 1 of generation 2";
  m.cliffs.push_back({"write 4M x 4", 12.34, 34ull << 30, 5.2e9, 1.1e9});
  m.warnings = {"the page cache holds the file"};
  const Required required = judge(parse_thresholds("write=9GB/s"), m);
  const std::string text = result_text(m, &required);
  expect_part(text, "MISMATCH: 3 pages came back other than they were written");
  expect_part(text, "page 1 of generation 2");
  expect_part(text,
              "  write 4M x 4: throughput fell for good after 12.3 s and 34 GiB written, from "
              "5.20 GB/s to 1.10\n    GB/s: the drive's cache was full.");
  expect_part(text, "required\n  MISSED  write=9GB/s: 3.20 GB/s (write 4M x 4)\n");
  EXPECT_TRUE(text.ends_with("warnings\n  - the page cache holds the file\n")) << text;
}

TEST(ReportText, TellsWhatTheProgramHeldWhenItBeganAndWhenItEnded) {
  Measurement m = example();
  EXPECT_EQ(result_text(m, nullptr).find("held by"), std::string::npos) << "by one round, nothing";
  m.held = {{1 << 20, 9, 1}, {3 << 20, 12, 1}, {2 << 20, 10, 2}};
  EXPECT_EQ(result_text(m, nullptr).find("held by"), std::string::npos) << "42 s are no soak";
  m.seconds = 60;
  expect_part(result_text(m, nullptr),
              "held by this program (memory, open files, threads): 1 MiB, 9, 1 after the first "
              "round; 2 MiB, 10, 2\n  after the last; 3 MiB, 12, 2 at most\n");
  const Json held = to_json(m, nullptr).at("held");
  EXPECT_EQ(held.at("after_last_round").at("open_files"), 10);
  EXPECT_EQ(held.at("most").at("memory_bytes"), 3 << 20);
}

TEST(ReportText, TellsEachDrivesPart) {
  Measurement m = example();
  m.drives.push_back(m.drives[0]);
  m.drives[1].path = "/mnt/nvme1";
  for (Cell& cell : m.cells) {
    for (Sample& sample : cell.samples)
      sample.drive_bytes = {sample.bytes() / 4, sample.bytes() / 4 * 3};
  }
  const std::string text = result_text(m, nullptr);
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

TEST(ReportText, SaysWhatRecordsAreAndWhatARoundOfAComparisonMoved) {
  Measurement m = example();
  EXPECT_EQ(result_text(m, nullptr).find("whole records"), std::string::npos);
  Workload engine = m.cells[0].workload;
  engine.mover = Mover::kEngine;
  engine.record_bytes = 10 << 20;
  m.cells.push_back(cell_of(engine, {1, 1, 1, 1, 1, 1}));
  const std::string text = result_text(m, nullptr);
  expect_part(text, "engine: requests are whole records, in IOPS and in latencies\n");
  expect_part(text, "\n  each moved 3.81 GiB to 4.38 GiB per round, in 1.00 to 1.00 s\n");
}

TEST(ReportText, GivesOfALongStretchItsVerdictAndNoInterval) {
  Measurement m = example();
  m.comparisons.clear();
  m.cells = {cell_of({.pattern = Pattern::kWrite, .depth = 16}, {5.2})};
  m.cells[0].samples[0].seconds_of.resize(4);
  m.cells[0].samples[0].seconds = 4;
  const std::string text = result_text(m, nullptr);
  expect_part(text,
              "cache cliffs\n  write 1M x 16: no lasting fall within 4.00 s and 5.2 GB written\n");
  EXPECT_EQ(text.find("fewer than 6 rounds"), std::string::npos) << text;
  EXPECT_EQ(text.find("1.30*"), std::string::npos) << text;
  expect_part(text, "none follow: long stretches are measured once each");
  m.cliffs.push_back({"write 1M x 16", 1, 34ull << 30, 5.2e9, 1.1e9});
  EXPECT_EQ(result_text(m, nullptr).find("no lasting fall"), std::string::npos);
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

TEST(Recommendation, IsNoneWhereOneSettingWasMeasuredOrMemoryOrALongStretch) {
  Measurement m = example();
  expect_part(result_text(m, nullptr), "`headrace tune` finds settings, and proves them");
  Measurement one = m;
  one.comparisons.clear();
  std::erase_if(one.cells, [](const Cell& c) { return c.workload.pattern != Pattern::kWrite; });
  EXPECT_FALSE(recommendation_of(one));
  expect_part(result_text(one, nullptr),
              "none follow: one setting was measured, so none was chosen; `headrace tune`");
  EXPECT_EQ(to_json(one, nullptr).at("recommended"), nullptr);
  expect_part(to_json(one, nullptr).at("not_recommended"), "one setting was measured");
  m.drives[0].memory_backed = true;
  EXPECT_FALSE(recommendation_of(m));
  expect_part(no_recommendation_text(m), "/mnt/nvme0 is memory, and no drive was measured");
}

TEST(Recommendation, IsWhatTheEngineTakes) {
  Measurement m = example();
  m.cells.push_back(cell_of({.pattern = Pattern::kMixed, .block_bytes = 1 << 20, .depth = 4},
                            {2.1, 2.2, 2.3, 2.4, 2.5, 2.6}));
  const auto recommendation = recommendation_of(m);
  ASSERT_TRUE(recommendation);
  EXPECT_EQ(recommendation->cell, 7u);  // of rw, fio's left out
  const Settings settings = Settings::from_json(recommendation->settings.dump());
  EXPECT_EQ(settings.io_block_bytes, 4u << 20);
  EXPECT_EQ(settings.queue_depth, 4u);
  EXPECT_EQ(settings.submit_batch, 2u);
  EXPECT_EQ(settings.io_queue, IoQueueKind::kAuto);
  EXPECT_EQ(recommendation->notes[0],
            "Measured with rw 4M x 4: 4.35 GB/s [4.09, 4.60] over 6 rounds.");
}

TEST(Recommendation, SaysWhatItRestsOn) {
  Measurement m = example();
  std::erase_if(m.cells, [](const Cell& c) { return c.workload.pattern != Pattern::kWrite; });
  m.cells[0].workload.jobs = 2;
  m.cells[0].workload.queue = IoQueueKind::kAio;
  m.cells.push_back(cell_of({.pattern = Pattern::kWrite, .depth = 64}, {3.0, 3.1, 3.2}));
  const auto recommendation = recommendation_of(m);
  ASSERT_TRUE(recommendation);
  EXPECT_EQ(recommendation->settings["headrace"]["queue_depth"], 8);
  EXPECT_EQ(recommendation->settings["headrace"]["io_queue"], "aio");
  std::string notes;
  for (const std::string& note : recommendation->notes) notes += note + "\n";
  expect_part(notes, "fewer than 6 rounds, which bound nothing");
  expect_part(notes, "1 other setting cannot be told from it");
  expect_part(notes, "best for write alone");
  expect_part(notes, "2 threads per drive; the engine has one");
}

TEST(Recommendation, PassesOverWhatIsNoSetting) {
  Measurement m;
  m.cells.push_back(cell_of({.block_bytes = 512}, {1, 1, 1}));
  m.cells.push_back(cell_of({.block_bytes = 1 << 20, .depth = 2}, {0.1, 0.1, 0.1}));
  EXPECT_FALSE(recommendation_of(m));
  m.cells[0].workload.block_bytes = 128 << 20;
  EXPECT_FALSE(recommendation_of(m));
  m.cells[0].workload.block_bytes = 64 << 20;
  EXPECT_TRUE(recommendation_of(m));
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
