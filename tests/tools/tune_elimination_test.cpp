// SPDX-License-Identifier: Apache-2.0
// tune_elimination_test: who is dropped and who is kept, on rates drawn at random around true ones.
#include "tune/elimination.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>

namespace headrace::tools::tune_elimination_test {
namespace {
constexpr std::uint32_t kRounds = 24;

// Rates around the true ones, with noise of each sample, drift that all samples of a round share,
// and now and then a sample that something else slowed down.
class Drive {
 public:
  Drive(std::vector<double> true_rates, double noise, std::uint64_t seed)
      : true_rates_(std::move(true_rates)), noise_(noise), random_(seed) {}

  Elimination eliminate(std::uint32_t rounds) {
    Elimination elimination(true_rates_.size());
    for (std::uint32_t r = 0; r < rounds && elimination.left().size() > 1; ++r) {
      const double drift = std::exp(0.2 * normal_(random_));
      std::vector<double> rates;
      for (const std::size_t candidate : elimination.left())
        rates.push_back(true_rates_[candidate] * drift * one());
      elimination.add_round(rates);
    }
    return elimination;
  }

 private:
  double one() {
    const double slowed = random_() % 20 == 0 ? 0.6 : 1;
    return slowed * std::exp(noise_ * normal_(random_));
  }
  std::vector<double> true_rates_;
  double noise_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

class EliminationTest : public ::testing::Test {
 protected:
  EliminationTest() : seed_(std::random_device{}()) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }
  // Of many eliminations, the share for which `holds`.
  double share_of(const std::vector<double>& true_rates, double noise,
                  const std::function<bool(const Elimination&)>& holds) const {
    constexpr int kTimes = 300;
    int count = 0;
    for (int i = 0; i < kTimes; ++i) {
      Drive drive(true_rates, noise, seed_ + static_cast<std::uint64_t>(i));
      count += holds(drive.eliminate(kRounds)) ? 1 : 0;
    }
    return static_cast<double>(count) / kTimes;
  }
  const std::uint64_t seed_;
};

bool keeps(const Elimination& elimination, std::size_t candidate) {
  return std::ranges::find(elimination.left(), candidate) != elimination.left().end();
}

TEST_F(EliminationTest, FindsTheOneThatIsReallyFaster) {
  std::vector<double> rates(12, 1.0);
  rates[7] = 1.3;
  const auto found = [](const Elimination& elimination) {
    return elimination.left() == std::vector<std::size_t>{7};
  };
  EXPECT_GT(share_of(rates, 0.06, found), 0.85);
}

TEST_F(EliminationTest, HardlyEverDropsTheFastest) {
  std::vector<double> rates;
  for (int i = 0; i < 16; ++i) rates.push_back(1 - 0.02 * i);
  for (const double noise : {0.03, 0.1, 0.25}) {
    const auto keeps_it = [](const Elimination& elimination) { return keeps(elimination, 0); };
    EXPECT_GT(share_of(rates, noise, keeps_it), 0.85) << noise;
  }
}

TEST_F(EliminationTest, KeepsThoseThatAreEquallyFast) {
  const std::vector<double> rates(16, 2.5e9);
  for (const double noise : {0.01, 0.1, 0.25}) {
    const auto keeps_all = [](const Elimination& elimination) {
      return elimination.left().size() == 16;
    };
    EXPECT_GT(share_of(rates, noise, keeps_all), 0.8) << noise;
  }
}

TEST(Elimination, DropsWhoIsFarBehindAfterFiveRounds) {
  Elimination elimination(3);
  for (int round = 1; round <= 6; ++round) {
    std::vector<double> rates{1.0, 0.6, round % 2 == 0 ? 1.1 : 0.5};
    if (round == 6) rates.erase(rates.begin() + 1);
    const std::vector<std::size_t> lost = elimination.add_round(rates);
    EXPECT_EQ(lost, round == 5 ? std::vector<std::size_t>{1} : std::vector<std::size_t>{}) << round;
  }
  EXPECT_EQ(elimination.dropped_after(1), 5u);
  EXPECT_FALSE(elimination.dropped_after(2)) << "it won some rounds";
  EXPECT_EQ(elimination.rounds(), 6u);
  EXPECT_EQ(elimination.rate(1).count, 5u) << "over the rounds it took part in";
}

TEST(Elimination, DropsNobodyInAFewRoundsHoweverClearTheyLook) {
  Elimination elimination(3);
  for (int round = 0; round < 8; ++round)
    EXPECT_TRUE(elimination.add_round({1.0, 0.9, 0.8}).empty()) << round;
  EXPECT_EQ(elimination.leader(), 0u);
  EXPECT_EQ(elimination.equals_of_leader(0.3), std::vector<std::size_t>{0}) << "told apart";
}

TEST(Elimination, CountsAsEqualWhoIsNotToldApartAndWithinTheMargin) {
  Elimination elimination(4);
  elimination.leave_out(3);
  for (int round = 0; round < 7; ++round) {
    const bool other = round % 3 == 0;  // ahead in three rounds of seven
    elimination.add_round({1.0, other ? 1.01 : 0.99, other ? 1.5 : 0.8});
  }
  EXPECT_EQ(elimination.left(), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(elimination.equals_of_leader(0.03), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(elimination.equals_of_leader(0.25), (std::vector<std::size_t>{0, 1, 2}));
}

// A drive that is faster for a while and slower for a while.
TEST_F(EliminationTest, AnIntervalOverTimeHoldsTheRateOfADriveThatDrifts) {
  std::mt19937_64 random(seed_);
  std::normal_distribution<double> normal;
  constexpr int kTimes = 2000;
  int held = 0, held_by_plain = 0;
  for (int i = 0; i < kTimes; ++i) {
    double drift = normal(random);
    std::vector<double> rates;
    for (int round = 0; round < 36; ++round) {
      drift = 0.6 * drift + 0.8 * normal(random);
      rates.push_back(10 + drift);
    }
    const MedianInterval aware = interval_over_time(rates), plain = median_interval(rates);
    held += aware.low <= 10 && 10 <= aware.high ? 1 : 0;
    held_by_plain += plain.low <= 10 && 10 <= plain.high ? 1 : 0;
    EXPECT_LE(aware.low, plain.low);
    EXPECT_GE(aware.high, plain.high);
    EXPECT_EQ(aware.median, plain.median);
  }
  EXPECT_LT(held_by_plain, kTimes * 85 / 100) << "the plain one takes rounds for independent";
  EXPECT_GT(held, kTimes * 87 / 100);
  EXPECT_FALSE(interval_over_time({1, 2, 3}).bounded);
}

TEST(Cheapest, HasTheFewestBytesInFlightThenTheLeastCpuThenIsPreferred) {
  EXPECT_EQ(cheapest({{.in_flight_bytes = 16, .cpu_per_gb = 0.1}, {8, 0.9, 1}}), 1u);
  EXPECT_EQ(cheapest({{8, 0.30, 0}, {8, 0.20, 1}, {16, 0.01, 2}}), 1u);
  EXPECT_EQ(cheapest({{8, 0.205, 2}, {8, 0.20, 3}, {8, 0.21, 1}, {8, 0.3, 0}}), 2u)
      << "a tenth is noise";
  EXPECT_EQ(cheapest({{8, 0, 0}}), 0u);
}
}  // namespace
}  // namespace headrace::tools::tune_elimination_test
