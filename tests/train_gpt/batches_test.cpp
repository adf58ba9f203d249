// SPDX-License-Identifier: Apache-2.0
// Which windows are trained on and held out, and the schedule.
#include "batches.hpp"

#include <algorithm>
#include <set>

#include "schedule.hpp"
#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
std::vector<std::uint8_t> copy(const Batch& batch) {
  return {batch.windows.begin(), batch.windows.end()};
}

std::string counting_text(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 251 / 7 % 255 + 1);
  return text;
}

TEST(RandomBelow, GivesTheSameNumbersEverywhere) {
  // Fixed for good: reports of equal seeds are to stay comparable.
  EXPECT_EQ(random_below(0, 0, ~0ull), 12035550249420947054ull);
  EXPECT_EQ(random_below(7, 3, 1000), 604u);
  EXPECT_EQ(random_below(1, 0, 1000), random_below(1, 0, 1000));
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) seen.insert(random_below(7, i, ~0ull));
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(RandomBelow, StaysInRangeAndReachesAllOfIt) {
  std::vector<int> counts(10);
  for (std::uint64_t i = 0; i < 10'000; ++i) ++counts.at(random_below(3, i, 10));
  for (const int count : counts) {
    EXPECT_GT(count, 850);
    EXPECT_LT(count, 1150);
  }
  EXPECT_EQ(random_below(9, 9, 1), 0u);
}

TEST(Split, HoldsOutTheLastTwentiethOrOneWindow) {
  ScratchFolder folder;
  const Text longer = Text::open(folder.write("long", counting_text(10'000)));
  EXPECT_EQ(split_text(longer, 16).held_out_bytes, 500u);
  EXPECT_EQ(split_text(longer, 16).training_bytes, 9'500u);
  const Text shortest = Text::open(folder.write("short", counting_text(34)));
  EXPECT_EQ(split_text(shortest, 16).held_out_bytes, 17u);
  expect_error([&] { split_text(shortest, 17); }, headrace::Code::kInvalidArgument,
               {"34 bytes", "needs 36", "--seq 16 or less"});
}

TEST(Batches, DependOnSeedAndIndexOnly) {
  ScratchFolder folder;
  const Text text = Text::open(folder.write("text", counting_text(5000)));
  Batches a(text, 4, 32, 1);
  Batches b(text, 4, 32, 1);
  const auto first = copy(a.training(0));
  const auto second = copy(a.training(1));
  EXPECT_NE(first, second);
  EXPECT_EQ(copy(b.training(1)), second) << "no state is carried from batch to batch";
  EXPECT_EQ(copy(b.training(0)), first);
  Batches other(text, 4, 32, 2);
  EXPECT_NE(copy(other.training(0)), first);
}

TEST(Batches, NeverTrainOnWhatIsHeldOut) {
  ScratchFolder folder;
  const std::string held_out(50, 'h');
  const Text text = Text::open(folder.write("text", std::string(950, 't') + held_out));
  Batches batches(text, 3, 16, 5);
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Batch batch = batches.training(i);
    ASSERT_TRUE(std::all_of(batch.windows.begin(), batch.windows.end(),
                            [](std::uint8_t c) { return c == 't'; }));
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Batch batch = batches.held_out(i, 4);
    ASSERT_TRUE(std::all_of(batch.windows.begin(), batch.windows.end(),
                            [](std::uint8_t c) { return c == 'h'; }));
  }
}

TEST(Batches, SpreadTheHeldOutWindowsFromEndToEnd) {
  ScratchFolder folder;
  std::string bytes(1000, 't');
  bytes[950] = 'F';
  bytes[999] = 'L';
  const Text text = Text::open(folder.write("text", bytes));
  Batches batches(text, 2, 16, 5);
  EXPECT_EQ(batches.held_out(0, 3).windows.front(), 'F');
  EXPECT_EQ(batches.held_out(2, 3).windows.back(), 'L');
}

TEST(Schedule, RisesStraightThenFallsAlongACosine) {
  const Schedule s{.peak = 1.0, .least = 0.1, .warmup_steps = 10, .steps = 110};
  EXPECT_DOUBLE_EQ(s.learning_rate(1), 0.1);
  EXPECT_DOUBLE_EQ(s.learning_rate(5), 0.5);
  EXPECT_DOUBLE_EQ(s.learning_rate(10), 1.0);
  EXPECT_NEAR(s.learning_rate(60), 0.55, 1e-12);
  EXPECT_NEAR(s.learning_rate(110), 0.1, 1e-12);
  for (std::uint64_t step = 11; step <= 110; ++step)
    EXPECT_LT(s.learning_rate(step), s.learning_rate(step - 1));
}

TEST(Schedule, ServesRunsWithoutWarmUpAndRunsOfNothingElse) {
  EXPECT_NEAR((Schedule{.peak = 1, .least = 0.5, .warmup_steps = 0, .steps = 1}.learning_rate(1)),
              0.5, 1e-12);
  EXPECT_DOUBLE_EQ(
      (Schedule{.peak = 1, .least = 0, .warmup_steps = 3, .steps = 3}.learning_rate(3)), 1.0);
}
}  // namespace
}  // namespace train_gpt
