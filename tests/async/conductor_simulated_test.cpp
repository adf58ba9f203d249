// SPDX-License-Identifier: Apache-2.0
// What only the simulated conductor shows: seeds, virtual time, deadlocks named.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "async/conductor_conformance.hpp"
#include "support/conductor_simulated.hpp"

namespace headrace::async::testing {
namespace {
struct Letter : Work {
  std::string* text = nullptr;
  char letter = ' ';
  static void write(Work* work) noexcept {
    const auto* const self = static_cast<Letter*>(work);
    self->text->push_back(self->letter);
  }
};

std::string order_of(std::uint64_t seed) {
  const auto conductor = make_conductor_simulated({.seed = seed});
  std::string text;
  std::vector<Letter> letters(8);
  for (int i = 0; i < 8; ++i) {
    letters[i].run = &Letter::write;
    letters[i].text = &text;
    letters[i].letter = static_cast<char>('a' + i);
    conductor->post(letters[i]);
  }
  call(*conductor, nullptr, [&]() -> Task<> {
    while (text.size() < 8) co_await Yield{*conductor};
  });
  return text;
}

TEST(ConductorSimulated, TheSameSeedGivesTheSameOrder) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(order_of(seed), order_of(seed));
}

TEST(ConductorSimulated, DifferentSeedsGiveManyOrders) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) orders.insert(order_of(seed));
  EXPECT_GT(orders.size(), 40u);
}

TEST(ConductorSimulated, EveryPairComesInBothOrders) {
  std::set<std::string> pairs;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::string order = order_of(seed);
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (std::size_t j = i + 1; j < order.size(); ++j) {
        pairs.insert(std::string{order[i], order[j]});
      }
    }
  }
  EXPECT_EQ(pairs.size(), 8u * 7u);
}

TEST(ConductorSimulated, TheClockJumpsToTheNextTimerAndStandsStillOtherwise) {
  const auto conductor = make_conductor_simulated({});
  EXPECT_EQ(conductor->now(), Nanoseconds::zero());
  call(*conductor, nullptr, [&]() -> Task<> {
    for (int i = 0; i < 100; ++i) co_await Yield{*conductor};
    EXPECT_EQ(conductor->now(), Nanoseconds::zero());
    co_await Delay{*conductor, std::chrono::hours(24 * 365)};
    EXPECT_EQ(conductor->now(), std::chrono::hours(24 * 365));
  });
}

TEST(ConductorSimulated, RunsNothingOutsideWait) {
  const auto conductor = make_conductor_simulated({});
  std::string text;
  Letter letter;
  letter.run = &Letter::write;
  letter.text = &text;
  conductor->post(letter);
  EXPECT_EQ(text, "");
  call(*conductor, nullptr, [&]() -> Task<> {
    while (text.empty()) co_await Yield{*conductor};
  });
  EXPECT_EQ(text, " ");
}

TEST(ConductorSimulated, NamesADeadlock) {
  const auto conductor = make_conductor_simulated({.seed = 77});
  std::atomic<bool> never{false};
  try {
    conductor->wait(never, nullptr);
    FAIL() << "returned from a deadlock";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIoStalled);
    EXPECT_NE(std::strstr(error.what(), "deadlock"), nullptr) << error.what();
    EXPECT_NE(std::strstr(error.what(), "seed 77"), nullptr) << error.what();
  }
}

TEST(ConductorSimulatedDeathTest, RefusesPostsFromOtherThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto conductor = make_conductor_simulated({});
        Letter letter;
        std::thread([&] { conductor->post(letter); }).join();
      },
      "from another thread");
}

TEST(ConductorSimulatedDeathTest, RefusesTimersFromOutside) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto conductor = make_conductor_simulated({});
        Timer timer;
        conductor->after(Nanoseconds(1), timer);
      },
      "outside the conductor");
}
}  // namespace
}  // namespace headrace::async::testing
