// SPDX-License-Identifier: Apache-2.0
// bench_figure_doubts_test: which figures of a run are warned of, and what the warnings advise.
#include "bench/figure_doubts.hpp"

#include <gtest/gtest.h>

#include "tools/bench_example.hpp"
#include "tools/expect_part.hpp"

namespace headrace::tools::bench_figure_doubts_test {
namespace {
using bench_example::cell_of;
using bench_example::example;

std::string doubts(const Measurement& m, double wanted = 0.03) {
  std::string all;
  for (const std::string& text : figure_doubts(m, wanted)) all += text + "\n";
  return all;
}

TEST(FigureDoubts, AreNoneOfASettledRun) { EXPECT_EQ(doubts(example()), ""); }

TEST(FigureDoubts, CountIntervalsWiderThanAFifthOnce) {
  Measurement m = example();
  m.cells.push_back(cell_of({.depth = 2}, {1, 1, 2, 2, 3, 3}));
  m.cells.push_back(cell_of({.depth = 3}, {1, 1, 2, 2, 3.2, 3.2}));
  m.cells.push_back(cell_of({.depth = 5}, {1, 9}));  // bounds nothing, and is marked so
  expect_part(doubts(m), "the interval of 2 rows is wider than ±20 %, the widest ±55 %;");
}

TEST(FigureDoubts, NameAComparisonWhoseSidesReadDifferentShares) {
  Measurement m = example();
  Cell& fio = m.cells[m.comparisons[0].theirs];
  for (Sample& sample : fio.samples) {
    const std::uint64_t all = sample.bytes();
    sample.read_bytes = all * 53 / 100;
    sample.written_bytes = all - sample.read_bytes;
  }
  EXPECT_EQ(doubts(m), "");
  for (Sample& sample : fio.samples) {
    const std::uint64_t all = sample.bytes();
    sample.read_bytes = all * 20 / 32;
    sample.written_bytes = all - sample.read_bytes;
  }
  expect_part(doubts(m),
              "rw 4M x 4: 50 % of its bytes were read, and 62 % of those of fio io_uring; their "
              "ratio is of different work");
}

TEST(FigureDoubts, AdviseTheRuntimeThatLikelyResolvesAComparison) {
  Measurement m = example();  // 42 s, 8 GiB written
  Comparison& comparison = m.comparisons[0];
  comparison.resolved = false;
  comparison.ratio = median_interval({0.94, 1, 1, 1, 1, 1.06});  // ±6 %, so four times as long
  EXPECT_EQ(doubts(m),
            "1 of 1 comparisons is unresolved; likely enough is --until 3% --runtime 170s "
            "--max-write 32G\n");
  comparison.ratio = median_interval({0.9, 1, 1.1});  // 3 rounds
  expect_part(doubts(m), "--runtime 170s");
  comparison.ratio = median_interval({0.1, 0.1, 1, 1, 9, 9});
  expect_part(doubts(m), "let nothing else use the drive");
}

}  // namespace
}  // namespace headrace::tools::bench_figure_doubts_test
