// SPDX-License-Identifier: Apache-2.0
// bench_thresholds_test: what --require takes, what it refuses, and what is judged by which cell.
#include <gtest/gtest.h>

#include "bench/thresholds.hpp"
#include "command_line/words.hpp"
#include "tools/bench_example.hpp"

namespace headrace::tools::bench_thresholds_test {
namespace {
TEST(Thresholds, AreReadInTheirUnits) {
  const auto all = parse_thresholds(
      "read=6GB/s,write=500MB/s,rw=1GiB/s,p99=20ms,p50=80us,max=1.5s,iops=20k,cpu=5ms/GB");
  const std::vector<std::pair<std::string, double>> expected{
      {"read", 6e9}, {"write", 5e8}, {"rw", 1073741824}, {"p99", 2e7},
      {"p50", 8e4},  {"max", 1.5e9}, {"iops", 2e4},      {"cpu", 0.005}};
  ASSERT_EQ(all.size(), expected.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].name, expected[i].first);
    EXPECT_DOUBLE_EQ(all[i].bound, expected[i].second) << all[i].text;
  }
}

std::string refusal(const std::string& text) {
  try {
    parse_thresholds(text);
  } catch (const command_line::Fault& fault) {
    return command_line::text_of(fault, "nothing was measured");
  }
  return "";
}

TEST(Thresholds, AreRefusedWithTheNearestName) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"raed=6GB/s",
            "--require 'raed=6GB/s': 'raed' is nothing that is measured; nothing was measured. Did "
            "you mean read?"},
           {"temperature=6", "Give some of: read, write, randread, randwrite, rw, p50, p99, "},
           {"read=6GBs", "'GBs' is no unit of read; nothing was measured. Did you mean GB/s?"},
           {"read=6", "--require 'read=6' has no unit; nothing was measured. Write one of GB/s, "},
           {"p99=20parsecs", "Give one of ms, us, s."},
           {"read=fast", "'fast' does not begin with a number above 0"},
           {"read=-1GB/s", "above 0"},
           {"read=0GB/s", "above 0"},
           {"read=infGB/s", "above 0"},
           {"read", "--require 'read' has no value"},
           {"", "--require '' has no value"},
           {"read=1GB/s,", "--require '' has no value"},
           {"read=1GB/s,read=2GB/s", "--require asks for read twice"}}) {
    EXPECT_NE(refusal(text).find(expected), std::string::npos) << text << ": " << refusal(text);
  }
}

TEST(Thresholds, OfWhatIsNotPlannedAreRefusedBeforeTheStart) {
  const std::vector<Workload> planned{{.pattern = Pattern::kRead}};
  EXPECT_NO_THROW(check_measured(parse_thresholds("read=1GB/s,p99=1s,iops=1,cpu=1s/GB"), planned));
  try {
    check_measured(parse_thresholds("read=1GB/s,write=1GB/s"), planned);
    FAIL();
  } catch (const command_line::Fault& fault) {
    EXPECT_EQ(fault.cause, "--require write=1GB/s: nothing of this run would tell");
    EXPECT_EQ(fault.fix, "Add write to --rw, or leave write out of --require");
  }
  // What fio reaches is no answer.
  EXPECT_THROW(check_measured(parse_thresholds("p99=1s"), {{.mover = Mover::kFio}}),
               command_line::Fault);
}

TEST(Thresholds, AreJudgedByTheBestCellOrTheRecommendedOneWhichIsNamed) {
  const Measurement m = bench_example::example();
  const Required met = judge(parse_thresholds("read=5.5GB/s,rw=4.3GB/s,iops=3k"), m);
  EXPECT_TRUE(met.all_met()) << thresholds_text(met);
  EXPECT_EQ(met.judged[0].cell, "read 4M x 16");
  const Required missed = judge(parse_thresholds("read=5.5GB/s,write=3.3GB/s,p99=2ms"), m);
  EXPECT_FALSE(missed.all_met());
  EXPECT_EQ(thresholds_text(missed),
            "  met     read=5.5GB/s: 5.52 GB/s (read 4M x 16)\n"
            "  MISSED  write=3.3GB/s: 3.20 GB/s (write 4M x 4)\n"
            "  MISSED  p99=2ms: 12.3 ms (read 4M x 16, the recommended one)\n");
}

TEST(Thresholds, WhoseCellsWereNotReachedAreMissed) {
  Measurement m = bench_example::example();
  for (Cell& cell : m.cells) cell.samples.clear();
  const Required required = judge(parse_thresholds("read=1GB/s,p99=9s,cpu=9s/GB,iops=1"), m);
  EXPECT_FALSE(required.all_met());
  for (const Judged& judged : required.judged) EXPECT_FALSE(judged.measured);
  EXPECT_NE(thresholds_text(required).find("MISSED  read=1GB/s: not measured, the run was ended"),
            std::string::npos);
}
}  // namespace
}  // namespace headrace::tools::bench_thresholds_test
