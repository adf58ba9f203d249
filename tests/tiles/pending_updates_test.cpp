// SPDX-License-Identifier: Apache-2.0
// PendingUpdates: who asks for a group that will not be updated any more is told, however late.
#include "tiles/pending_updates.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headrace::tiles {
namespace {
using partition::Partition;

class PendingUpdatesTest : public ::testing::Test {
 protected:
  static Partition two_groups() {
    const partition::GroupShape group{{{"weight", DType::kBf16, {64}, {}}}};
    return partition::make_partition(std::vector{group, group}, base::kBlockElements, 0, 1);
  }
  static residency::Plan in_memory(const Partition& partition) {
    residency::Plan plan;
    plan.sections.resize(partition.sections.size());
    plan.group_in_place.resize(partition.group_sections.size(), true);
    return plan;
  }

  // What `task` came to; "waits" as long as it has not ended.
  struct Outcome {
    explicit Outcome(async::Task<> task) { group_.spawn(await(std::move(task), text)); }
    std::string text = "waits";

   private:
    static async::Task<> await(async::Task<> task, std::string& text) {
      try {
        co_await std::move(task);
        text = "done";
      } catch (const std::exception& error) {
        text = error.what();
      }
    }
    async::TaskGroup group_;
  };

  const Partition partition_ = two_groups();
  const residency::Plan plan_ = in_memory(partition_);
  PendingUpdates pending_{partition_, plan_};
  const std::exception_ptr error_ = std::make_exception_ptr(std::runtime_error("drive failed"));
};

TEST_F(PendingUpdatesTest, AfterAFailureOnlyWhatWasDoneBeforeItCountsAsDone) {
  pending_.begin({1, 2});
  pending_.note_pass({0});
  pending_.note_write({0});
  pending_.note_pass({1});
  const Outcome passed_before(pending_.until_passed({1})),
      written_before(pending_.until_written({1}));
  EXPECT_EQ(passed_before.text + ", " + written_before.text, "waits, waits");
  pending_.fail(error_);
  EXPECT_EQ(passed_before.text + ", " + written_before.text, "drive failed, drive failed");
  EXPECT_TRUE(pending_.passes_left({1}));
  EXPECT_EQ(Outcome(pending_.until_passed({1})).text, "drive failed");
  EXPECT_EQ(Outcome(pending_.until_written({1})).text, "drive failed");
  EXPECT_EQ(Outcome(pending_.until_passed({0})).text, "done");
  EXPECT_EQ(Outcome(pending_.until_written({0})).text, "done");
  EXPECT_TRUE(pending_.all_started());
}

TEST_F(PendingUpdatesTest, AStepThatChangedNothingLeavesNothingPending) {
  pending_.begin({1, 2});
  const Outcome before(pending_.until_passed({1}));
  pending_.forget();
  EXPECT_EQ(before.text, "done");
  EXPECT_FALSE(pending_.passes_left({0}));
  EXPECT_EQ(Outcome(pending_.until_written({1})).text, "done");
  pending_.begin({0, 1});
  EXPECT_TRUE(pending_.passes_left({1}));
  const Outcome next(pending_.until_passed({1}));
  EXPECT_EQ(next.text, "waits");
  pending_.note_pass({1});
  EXPECT_EQ(next.text, "done");
}
}  // namespace
}  // namespace headrace::tiles
