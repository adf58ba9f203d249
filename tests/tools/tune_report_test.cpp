// SPDX-License-Identifier: Apache-2.0
// tune_report_test: what `headrace tune` says of a result, in its own words for each row.
#include "tools/expect_part.hpp"
#include "tune/report.hpp"

#include <gtest/gtest.h>

namespace headrace::tools::tune_report_test {
namespace {
Contestant contestant(std::uint64_t mib, std::uint32_t depth, std::initializer_list<double> rates) {
  Contestant made{.candidate = {.block_bytes = mib << 20, .depth = depth, .submit_batch = 2}};
  for (const double rate : rates)
    made.rounds.push_back({.read_rate = rate * 1e9, .cpu_per_gb = 0.02, .queue = "uring"});
  return made;
}

// Of six rounds: the leader, one as good, one behind it that varies too much to be told apart, and
// one that was dropped while the drive was fast.
TuneReport report() {
  TuneReport made;
  made.goal = Goal::kRead;
  Stage& stage = made.result.stages.emplace_back();
  stage.name = "block size and depth";
  stage.contestants = {contestant(1, 16, {2.0, 2.0, 2.0, 2.0, 2.0, 2.0}),
                       contestant(1, 4, {1.99, 1.99, 1.99, 2.01, 1.99, 2.01}),
                       contestant(2, 8, {1.8, 1.8, 1.8, 2.1, 1.8, 2.1}),
                       contestant(4, 8, {3.0, 3.0, 3.0})};
  stage.contestants[3].dropped_after = 3;
  stage.rounds = 6;
  stage.leader = 0;
  stage.equals = {0, 1};
  stage.pick = 1;
  Confirmation& fresh = made.result.confirmation;
  fresh.contestants = {stage.contestants[0], stage.contestants[1], stage.contestants[2]};
  fresh.rounds = 6;
  fresh.pick = 1;
  fresh.runner_up = 2;
  made.result.rate = fresh.contestants[0].rate(made.goal);
  made.result.to_defaults = median_interval({0.94, 0.96, 1.01, 1.01, 1.02, 1.03});
  made.result.verdict = Verdict::kNotTold;
  return made;
}

TEST(TuneReport, SaysWhatALeaderIsAndWhoIsNotToldApartFromIt) {
  const std::string text = report_text(report());
  expect_part(text, "The leader has the highest median of those that were not dropped.");
  expect_part(text, "1: the leader");
  EXPECT_EQ(text.find("the fastest"), std::string::npos) << "3.00 GB/s stand above it\n" << text;
  expect_part(text, "within 3 % of it: 1M x 16; 1M x");
  expect_part(text, "Taken: 1M x 4, the cheapest of them. 1 other was not told apart either");
}

TEST(TuneReport, SaysWhoseRatioToTheDefaultsDecided) {
  TuneReport made = report();
  expect_part(result_sentences(made.result)[0],
              "the pick cannot be told from the defaults (1.01 [");
  made.result.runner_up_taken = true;
  expect_part(result_sentences(made.result)[0],
              "the second cannot be told from the defaults (1.01 [");
  expect_part(result_sentences(made.result)[1], "the second was faster than the pick");
  made.result.verdict = Verdict::kSlower;
  expect_part(result_sentences(made.result)[0], "in the fresh rounds the second was slower (");
}

TEST(TuneReport, IsAtMostAHundredColumnsWide) {
  const std::string text = report_text(report());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    EXPECT_LE(end - at, 100u) << text.substr(at, end - at);
    at = end + 1;
  }
}
}  // namespace
}  // namespace headrace::tools::tune_report_test
