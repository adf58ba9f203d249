// SPDX-License-Identifier: Apache-2.0
// All time is the test's own.
#include "swap/stall_watch.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace headrace::swap::test {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;

class StallWatchTest : public testing::Test {
 protected:
  StallWatchTest() {
    blocks_[0].state = BlockState::kInQueue;
    blocks_[0].since = start_;
  }
  // Looks every 100 ms until `until`, as the drive does while anything is in flight.
  void run_until(DriveClock::duration until) {
    while (now_ < start_ + until) look_at(now_ + milliseconds(100));
  }
  void look_at(DriveClock::time_point now) {
    now_ = now;
    watch_.look(
        now_, blocks_, true, [this](Block&, auto) { ++slow_; },
        [this](Block& block, auto) {
          ++lost_;
          block.state = BlockState::kAbandoned;
        });
  }

  DriveClock::time_point start_ = DriveClock::now(), now_ = start_;
  std::vector<Block> blocks_ = std::vector<Block>(2);
  StallWatch watch_{10, 60, start_};
  int slow_ = 0, lost_ = 0;
};

TEST_F(StallWatchTest, NamesASlowRequestOnceAndGivesItUpAtTheDeadline) {
  run_until(seconds(9));
  EXPECT_EQ(slow_, 0);
  run_until(seconds(12));
  EXPECT_EQ(slow_, 1);
  run_until(seconds(59));
  EXPECT_EQ(slow_, 1);
  EXPECT_EQ(lost_, 0);
  run_until(seconds(62));
  EXPECT_EQ(lost_, 1);
  run_until(seconds(200));
  EXPECT_EQ(lost_, 1);
}

TEST_F(StallWatchTest, LooksOnlyAtWhatIsInTheQueue) {
  blocks_[0].state = BlockState::kWaiting;
  run_until(seconds(100));
  EXPECT_EQ(slow_ + lost_, 0);
}

// A stopped process (SIGSTOP, a frozen container, a machine that slept) comes back an hour later.
TEST_F(StallWatchTest, TimeInWhichTheProcessStoodStillIsNotTheDrives) {
  run_until(seconds(5));
  look_at(now_ + std::chrono::hours(1));
  EXPECT_EQ(slow_ + lost_, 0);
  start_ += std::chrono::hours(1);
  run_until(seconds(9));
  EXPECT_EQ(slow_ + lost_, 0);
  run_until(seconds(12));
  EXPECT_EQ(slow_, 1) << "the time before and after counts";
}

TEST_F(StallWatchTest, NorIsItOfARequestThatWasSentSinceTheLastLook) {
  run_until(seconds(5));
  blocks_[0].since = now_ + milliseconds(1);
  look_at(now_ + std::chrono::hours(1));
  EXPECT_EQ(slow_ + lost_, 0);
}

TEST_F(StallWatchTest, AQuietHourIsNotHeldAgainstWhatComesAfter) {
  now_ += std::chrono::hours(1);
  watch_.look(
      now_, blocks_, false, [](Block&, auto) {}, [](Block&, auto) {});
  blocks_[0].since = start_ = now_;
  run_until(seconds(9));
  EXPECT_EQ(slow_, 0);
}

TEST(StallWatch, LooksOftenEnoughForShortDeadlinesAndSeldomForLongOnes) {
  const DriveClock::time_point now = DriveClock::now();
  EXPECT_EQ(StallWatch(10, 60, now).interval(), milliseconds(500));
  EXPECT_EQ(StallWatch(60, .1, now).interval(), milliseconds(25));
  EXPECT_EQ(StallWatch(0, 60, now).interval(), milliseconds(1));
  EXPECT_EQ(StallWatch(1e300, 1e300, now).interval(), milliseconds(500));
}
}  // namespace
}  // namespace headrace::swap::test
