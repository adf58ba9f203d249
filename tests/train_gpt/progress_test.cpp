// SPDX-License-Identifier: Apache-2.0
// How progress is worded and when it is printed.
#include "progress.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace train_gpt {
namespace {
TEST(FormatProgress, SaysStepLossSpeedLanesAndTimeLeft) {
  ProgressState state{.step = 12,
                      .steps = 100,
                      .loss = 2.34567,
                      .tokens_per_second = 1204.4,
                      .read_gb_per_second = 1.2,
                      .write_gb_per_second = 0.9,
                      .seconds_left = 123};
  EXPECT_EQ(format_progress(state),
            "step 12/100  loss 2.3457  1204 tokens/s  read 1.20 write 0.90 GB/s  2m03s left");
  state.read_gb_per_second = state.write_gb_per_second = 0;
  state.seconds_left = 3 * 3600 + 5 * 60 + 59;
  EXPECT_EQ(format_progress(state), "step 12/100  loss 2.3457  1204 tokens/s  3h05m left");
  state.step = state.steps;
  EXPECT_EQ(format_progress(state), "step 100/100  loss 2.3457  1204 tokens/s");
}

std::string printed(bool shown, std::uint64_t steps) {
  ::testing::internal::CaptureStderr();
  Progress progress(shown);
  progress.stage("creating");
  for (std::uint64_t step = 1; step <= steps; ++step)
    progress.step({.step = step, .steps = steps, .loss = 1});
  progress.message("headrace: warning: x");
  return ::testing::internal::GetCapturedStderr();
}

TEST(Progress, PrintsPlainLinesWhereThereIsNoTerminal) {
  const std::string text = printed(true, 1000);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 53)
      << "the stage, the first step and every twentieth, the message";
  EXPECT_NE(text.find("step 1000/1000"), std::string::npos);
}

TEST(Progress, KeepsMessagesWhenNothingElseIsShown) {
  EXPECT_EQ(printed(false, 1), "headrace: warning: x\n");
}
}  // namespace
}  // namespace train_gpt
