// SPDX-License-Identifier: Apache-2.0
// How progress is worded and when it is printed.
#include "progress.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace train_gpt {
namespace {
const ProgressState kState{.step = 12,
                           .steps = 100,
                           .loss = 2.34567,
                           .tokens_per_second = 1204.4,
                           .read_gb_per_second = 1.2,
                           .write_gb_per_second = 0.9,
                           .seconds_left = 123};

TEST(FormatDuration, PicksTheUnitsPeopleRead) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(123), "2m03s");
  EXPECT_EQ(format_duration(3 * 3600 + 5 * 60 + 59), "3h05m");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(FormatBytes, CountsInPowersOf1024) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes((1 << 20) - 10), "1.0 MiB");
  EXPECT_EQ(format_bytes(1.5 * (1 << 30)), "1.5 GiB");
}

TEST(FormatProgress, SaysStepLossSpeedLanesAndTimeLeft) {
  EXPECT_EQ(format_progress_line(kState),
            "step 12/100  loss 2.3457  1204 tokens/s  read 1.20 write 0.90 GB/s  2m03s left");
}

TEST(FormatProgress, LeavesOutIdleLanesAndTheEnd) {
  ProgressState state = kState;
  state.read_gb_per_second = state.write_gb_per_second = 0;
  state.step = state.steps;
  EXPECT_EQ(format_progress_line(state), "step 100/100  loss 2.3457  1204 tokens/s");
}

TEST(FormatProgress, DrawsABarThatFitsTheTerminal) {
  for (std::uint32_t columns = 1; columns < 140; ++columns) {
    EXPECT_LE(format_progress_bar(kState, columns, false).size(), columns);
  }
  EXPECT_EQ(format_progress_bar(kState, 79, false),
            "[=            ] 12/100  loss 2.3457  1204 tok/s  r 1.20 w 0.90 GB/s  2m03s left");
  EXPECT_EQ(format_progress_bar(kState, 200, false).substr(0, 29), "[==                  ] 12/100");
  EXPECT_EQ(format_progress_bar(kState, 20, false), "12/100  loss 2.3457 ");
}

TEST(FormatProgress, UsesColourOnlyWhenAsked) {
  EXPECT_EQ(format_progress_bar(kState, 80, false).find('\x1b'), std::string::npos);
  EXPECT_NE(format_progress_bar(kState, 80, true).find('\x1b'), std::string::npos);
}

std::string printed(void (*use)(Progress&), bool shown) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(file, shown);
    use(progress);
  }
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(Progress, PrintsPlainLinesWhereThereIsNoTerminal) {
  const std::string text = printed(
      [](Progress& progress) {
        progress.stage("creating");
        for (std::uint64_t step = 1; step <= 1000; ++step)
          progress.step({.step = step, .steps = 1000, .loss = 1});
      },
      true);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_EQ(lines, 52) << "the stage, the first step and every twentieth";
  EXPECT_NE(text.find("step 1000/1000"), std::string::npos);
}

TEST(Progress, KeepsMessagesWhenNothingElseIsShown) {
  const std::string text = printed(
      [](Progress& progress) {
        progress.stage("creating");
        progress.step({.step = 1, .steps = 1});
        progress.message("headrace: warning: x");
      },
      false);
  EXPECT_EQ(text, "headrace: warning: x\n");
}
}  // namespace
}  // namespace train_gpt
