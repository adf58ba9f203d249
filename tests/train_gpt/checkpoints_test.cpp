// SPDX-License-Identifier: Apache-2.0
// The room that a run's checkpoints take, before it starts.
#include "checkpoints.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

namespace train_gpt {
namespace {
// Saves and removes, as the run does.
std::uint64_t most_more_by_steps(const CheckpointsToMake& run) {
  std::set<std::uint64_t> there(run.present.begin(), run.present.end());
  std::size_t most = there.size();
  for (std::uint64_t step = run.done + 1; step <= run.steps; ++step) {
    if (step % run.every != 0) continue;
    there.insert(step);
    most = std::max(most, there.size());
    std::vector<std::uint64_t> old(there.begin(), there.upper_bound(step));
    for (std::size_t i = 0; run.keep > 0 && i + run.keep < old.size(); ++i) there.erase(old[i]);
  }
  return most - run.present.size();
}

TEST(CheckpointRoom, CountsWhatIsThereAtOnceBesideWhatWasThere) {
  EXPECT_EQ(most_more({0, 10, 2, 0, {}}), 5u);
  EXPECT_EQ(most_more({0, 10, 2, 2, {}}), 3u);
  EXPECT_EQ(most_more({6, 10, 2, 0, {2, 4, 6}}), 2u);
  EXPECT_EQ(most_more({6, 100, 2, 2, {4, 6}}), 1u);     // removes one after each
  EXPECT_EQ(most_more({6, 100, 2, 2, {2, 4, 6}}), 1u);  // and two after the first
  EXPECT_EQ(most_more({6, 100, 2, 4, {4, 6}}), 3u);     // up to five
  EXPECT_EQ(most_more({10, 10, 2, 2, {8, 10}}), 0u);    // none is made
  EXPECT_EQ(most_more({11, 10, 2, 2, {}}), 0u);
  EXPECT_EQ(most_more({0, 6, 2, 0, {2, 4, 6}}), 0u);  // with --overwrite
}

// Without --overwrite, none after `done` is there.
TEST(CheckpointRoom, CountsAsTheRunDoes) {
  std::mt19937 random(7);
  const auto draw = [&](std::uint64_t most) { return random() % (most + 1); };
  for (int i = 0; i < 2000; ++i) {
    CheckpointsToMake run{draw(12), draw(30), 1 + draw(4), draw(4), {}};
    for (std::uint64_t step = 1; step <= run.done; ++step)
      if (draw(2) == 0) run.present.push_back(step);
    EXPECT_EQ(most_more(run), most_more_by_steps(run))
        << run.done << " " << run.steps << " " << run.every << " " << run.keep << " "
        << run.present.size();
  }
}

TEST(CheckpointRoom, SaysWhatLacksAndTheOneChangeThatHelps) {
  CheckpointsToMake run{0, 10, 1, 0, {}};
  constexpr std::uint64_t kMiB = 1 << 20;
  EXPECT_EQ(lack_of_room(run, 10 * kMiB, 2 * kMiB, 102 * kMiB), "");
  EXPECT_EQ(lack_of_room(run, 10 * kMiB, 2 * kMiB, 101 * kMiB),
            "101 MiB free; the run needs 10 more checkpoints at once, of 10 MiB each, and "
            "2 MiB for its weights; the run was not started. Make room, or give --keep 8.");
  const auto help = [&](std::uint64_t free_mib) {
    const std::string text = lack_of_room(run, 10 * kMiB, 2 * kMiB, free_mib * kMiB);
    return text.substr(std::min(text.size(), text.find("not started. ") + 13));
  };
  EXPECT_EQ(help(22), "Make room, or give --keep 1.");
  EXPECT_EQ(help(21), "Make room.");  // no --keep fits
  EXPECT_EQ(help(1), "Make room.");
  run.keep = 2;
  EXPECT_EQ(help(32), "");
  EXPECT_EQ(help(31), "Make room, or give --keep 1.");  // not what the run has
  run = {6, 10, 1, 2, {5, 6}};
  EXPECT_EQ(help(12), "");  // 5 goes once 7 is there
  EXPECT_EQ(help(11), "Make room.");
}

TEST(CheckpointRoom, LooksAtTheFolderAboveWhereThereIsNone) {
  EXPECT_EQ(folder_or_above("/"), "/");
  EXPECT_EQ(folder_or_above("/none-of-this-name/"), "/");
  EXPECT_EQ(folder_or_above("none-of-this-name"), ".");
  EXPECT_EQ(folder_or_above("/proc/none/"), "/proc");
}
}  // namespace
}  // namespace train_gpt
