// SPDX-License-Identifier: Apache-2.0
// measure_test: the order of rounds, and the ranks that bound a median.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "measure/rounds.hpp"
#include "measure/sign_test.hpp"

namespace headrace::tools::measure_test {
namespace {
std::vector<std::size_t> order_of(std::size_t count, std::uint32_t round) {
  std::vector<std::size_t> order;
  for (std::size_t n = 0; n < count; ++n) order.push_back(in_turn(n, count, round));
  return order;
}

TEST(InTurn, BeginsElsewhereEveryRoundAndRunsBackwardsEverySecond) {
  using Order = std::vector<std::size_t>;
  EXPECT_EQ(order_of(4, 1), (Order{1, 2, 3, 0}));
  EXPECT_EQ(order_of(4, 2), (Order{1, 0, 3, 2}));
  EXPECT_EQ(order_of(4, 3), (Order{3, 0, 1, 2}));
  EXPECT_EQ(order_of(1, 7), (Order{0}));
}

TEST(InTurn, MeasuresEachOnceInEveryRound) {
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::vector<std::size_t> order = order_of(7, round);
    std::ranges::sort(order);
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i) << round;
  }
}

TEST(AlternatingRounds, RunTheirPartsForwardsAndBackwardsInTurn) {
  std::vector<std::uint32_t> told;
  const auto rounds = alternating_rounds(
      3, [&](std::uint32_t done) { told.push_back(done); },
      [](bool backwards) {
        std::string parts;
        run_parts({[&] { parts += "a"; }, [&] { parts += "b"; }, [&] { parts += "c"; }}, backwards);
        return parts;
      });
  EXPECT_EQ(rounds, (std::vector<std::string>{"abc", "cba", "abc"}));
  EXPECT_EQ(told, (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST(SignTest, RanksAreThoseOfItsTables) {
  EXPECT_EQ(sign_test_rank(5, 0.025), 0u);
  EXPECT_EQ(sign_test_rank(6, 0.025), 1u);
  EXPECT_EQ(sign_test_rank(8, 0.025), 1u);
  EXPECT_EQ(sign_test_rank(9, 0.025), 2u);
  EXPECT_EQ(sign_test_rank(20, 0.025), 6u);
  EXPECT_EQ(sign_test_rank(50, 0.025), 18u);
  EXPECT_EQ(sign_test_rank(0, 0.5), 0u);
  EXPECT_EQ(sign_test_rank(3, 1), 3u);
}
}  // namespace
}  // namespace headrace::tools::measure_test
