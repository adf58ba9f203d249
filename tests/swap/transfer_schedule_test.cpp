// SPDX-License-Identifier: Apache-2.0
#include "swap/transfer_schedule.hpp"

#include <gtest/gtest.h>

#include <list>

namespace headrace::swap::test {
namespace {
class TransferScheduleTest : public testing::Test {
 protected:
  TransferScheduleTest() { schedule_.set_up(1); }
  Transfer& add(Priority priority) {
    transfers_.emplace_back().priority = priority;
    schedule_.add(transfers_.back());
    return transfers_.back();
  }
  Transfer* next() {
    Active* const active = schedule_.next();
    return active != nullptr ? active->transfer : nullptr;
  }
  void finish_next() {
    Active& active = *schedule_.next();
    schedule_.withdraw(active);
    schedule_.release(active);
  }
  TransferSchedule schedule_;
  std::list<Transfer> transfers_;
};

TEST_F(TransferScheduleTest, IsByPriorityThenByArrival) {
  EXPECT_EQ(next(), nullptr);
  Transfer& background = add(Priority::kBackground);
  Transfer& write_back = add(Priority::kWriteBack);
  Transfer& prefetch = add(Priority::kPrefetch);
  Transfer& demand = add(Priority::kDemand);
  Transfer& later = add(Priority::kDemand);
  for (Transfer* const expected : {&demand, &later, &prefetch, &write_back, &background}) {
    EXPECT_EQ(next(), expected);
    finish_next();
  }
  EXPECT_TRUE(schedule_.idle());
}

TEST_F(TransferScheduleTest, OneThatHasBegunGoesOnAfterAnInterruption) {
  Transfer& write_back = add(Priority::kWriteBack);
  Active* const begun = schedule_.next();
  begun->issued = 4096;
  Transfer& demand = add(Priority::kDemand);
  EXPECT_EQ(next(), &demand);
  finish_next();
  EXPECT_EQ(schedule_.next(), begun);
  EXPECT_EQ(begun->transfer, &write_back);
  EXPECT_EQ(begun->issued, 4096u);
}

TEST_F(TransferScheduleTest, BackgroundThatHasBegunGivesWayToEverythingElse) {
  Transfer& background = add(Priority::kBackground);
  EXPECT_EQ(next(), &background);
  for (const Priority priority : {Priority::kWriteBack, Priority::kPrefetch, Priority::kDemand}) {
    Transfer& other = add(priority);
    EXPECT_EQ(next(), &other);
    finish_next();
    EXPECT_EQ(next(), &background);
  }
}

TEST_F(TransferScheduleTest, IsBusyUntilTheLastIsReleased) {
  add(Priority::kDemand);
  EXPECT_FALSE(schedule_.idle());
  Active& active = *schedule_.next();
  schedule_.withdraw(active);
  schedule_.withdraw(active);  // as when a second block of it fails
  EXPECT_FALSE(schedule_.idle()) << "its blocks are still under way";
  add(Priority::kDemand);
  schedule_.withdraw(active);
  EXPECT_NE(next(), nullptr) << "withdrawing one leaves the one behind it";
  schedule_.release(active);
  finish_next();
  EXPECT_TRUE(schedule_.idle());
}
}  // namespace
}  // namespace headrace::swap::test
