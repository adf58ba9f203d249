// SPDX-License-Identifier: Apache-2.0
// The tier over several drives: a sync of all of them, and writes that have one place.
#include "swap/swap_tier.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

#include "scratch.hpp"
#include "support/conductor_simulated.hpp"
#include "support/drive_at_speed.hpp"
#include "support/expect_code.hpp"

namespace headrace::swap::test {
namespace {
using headrace::testing::DriveAtSpeed;
using headrace::testing::DriveSpeedGiven;

class SwapTierTest : public ::testing::Test {
 protected:
  // One drive each; those after `file_bytes` store 16 pages.
  void make(std::vector<DriveSpeedGiven> speeds, std::vector<std::uint64_t> file_bytes = {}) {
    speeds_ = std::move(speeds);
    drives_.resize(speeds_.size());
    SwapTierOptions options;
    options.make_drive = [this](async::Conductor& conductor, DriveOptions drive) {
      auto made = std::make_unique<DriveAtSpeed>(conductor, speeds_[drive.index]);
      drives_[drive.index] = made.get();
      return made;
    };
    options.settings.allow_memory_backed = true;
    options.paths.assign(speeds_.size(), probe_path(scratch_.path(), options.settings));
    file_bytes.resize(speeds_.size(), 16 * kPage);
    options.drive_bytes = std::move(file_bytes);
    options.on_stall = [this](const std::string& cause) { stalls_.push_back(cause); };
    tier_ = std::make_unique<SwapTier>(*conductor_, std::move(options));
  }
  void sync() {
    async::call(*conductor_, nullptr, [&]() -> async::Task<> { co_await tier_->sync(); });
  }
  void write(Extent& extent) {
    async::call(*conductor_, nullptr, [&]() -> async::Task<> {
      co_await tier_->write(extent, memory_.span(), Priority::kWriteBack, subject_);
    });
  }
  void write_in_place(const Extent& extent) {
    async::call(*conductor_, nullptr, [&]() -> async::Task<> {
      co_await tier_->write_in_place(extent, memory_.span(), Priority::kBackground, subject_);
    });
  }
  std::string file_of(std::uint32_t drive) {
    const std::string place = tier_->place({drive, 0, kPage});
    return place.substr(0, place.find(" at "));
  }
  double seconds() const { return std::chrono::duration<double>(conductor_->now()).count(); }

  ScratchDirectory scratch_;
  std::unique_ptr<async::Conductor> conductor_ = async::make_conductor_simulated({.seed = 3});
  Pages memory_{4 * kPage};
  const std::string name_ = "h.3.attn";
  const Subject subject_{"swap out", &name_, 9};
  std::vector<DriveSpeedGiven> speeds_;
  std::vector<DriveAtSpeed*> drives_;
  std::vector<std::string> stalls_;
  std::unique_ptr<SwapTier> tier_;
};

TEST_F(SwapTierTest, SyncAsksEveryDriveThatStoresSomethingAndCountsThem) {
  make({{}, {}, {}}, {16 * kPage, 0});
  sync();
  EXPECT_EQ(drives_[0]->counters().syncs, 1u);
  EXPECT_EQ(drives_[1], nullptr);
  EXPECT_EQ(drives_[2]->counters().syncs, 1u);
  EXPECT_EQ(tier_->totals().syncs, 2u);
  EXPECT_EQ(tier_->totals().writes + tier_->totals().written_bytes, 0u);
}

// Each syncs behind what its link still has to move: one second, and three.
TEST_F(SwapTierTest, SyncWaitsForAllDrivesAtTheSameTimeAlsoWhenOneFails) {
  async::Nanoseconds one = std::chrono::seconds(1), three = std::chrono::seconds(3);
  make({{.link = &one, .sync_error = EIO}, {.link = &three}});
  EXPECT_CODE(Code::kIo, sync(), file_of(0));
  EXPECT_EQ(seconds(), 3);
  EXPECT_EQ(drives_[1]->counters().syncs, 1u);
}

TEST_F(SwapTierTest, AFailedSyncNamesItsFileAndWhatMayBeLost) {
  for (const int error : {EIO, ENOSPC, EINTR}) {
    make({{}, {.sync_error = error}, {}});
    const Error failed = headrace::testing::error_of([&] { sync(); });
    EXPECT_EQ(failed.code(), error == ENOSPC ? Code::kNoSpace : Code::kIo);
    EXPECT_EQ(failed.sys_errno(), error);
    const std::string text = failed.what();
    EXPECT_EQ(text.find("sync of " + file_of(1) + ": E"), 0u) << text;
    EXPECT_NE(text.find("since the last successful sync may be lost"), std::string::npos) << text;
    EXPECT_EQ(tier_->totals().syncs, 3u) << "each was asked once";
    EXPECT_TRUE(stalls_.empty());
  }
}

TEST_F(SwapTierTest, AfterALostSyncNothingElseIsStarted) {
  make({{}, {.sync_error = ETIMEDOUT, .stalls = true}});
  EXPECT_CODE(Code::kIoStalled, sync(), file_of(1));
  ASSERT_EQ(stalls_.size(), 1u);
  EXPECT_NE(stalls_[0].find(file_of(1)), std::string::npos) << stalls_[0];
  EXPECT_CODE(Code::kIoStalled, sync(), "sync: refused");
  const Extent extent = tier_->allocate(0, 4 * kPage);
  EXPECT_CODE(Code::kIoStalled, write_in_place(extent), "tile 9");
  EXPECT_EQ(tier_->totals().syncs, 2u);
  EXPECT_EQ(tier_->totals().written_bytes, 0u);
}

// The bytes moved and the errno are those of the extent that is named: the second.
TEST_F(SwapTierTest, AWriteThatFailsOnTwoExtentsNamesTheSecondWithItsOwnFigures) {
  std::vector<int> errors{EIO, ENOSPC};
  make({{.write_errors = &errors}});
  Extent extent = tier_->allocate(0, 4 * kPage);
  const Extent before = extent;
  Extent second = extent;
  second.offset_bytes += 4 * kPage;
  const Error failed = headrace::testing::error_of([&] { write(extent); });
  EXPECT_EQ(failed.code(), Code::kNoSpace);
  EXPECT_EQ(failed.sys_errno(), ENOSPC);
  const std::string text = failed.what();
  EXPECT_EQ(text.find("swap out 'h.3.attn' (tile 9): write 16384 bytes of " + tier_->place(second) +
                      ": got 0, ENOSPC"),
            0u)
      << text;
  EXPECT_NE(text.find("; another extent had failed before it; "), std::string::npos) << text;
  EXPECT_EQ(extent.offset_bytes, before.offset_bytes);
  EXPECT_EQ(tier_->totals().retries, 1u);
  // The second is free again, the first is not.
  EXPECT_EQ(tier_->allocate(0, 12 * kPage).offset_bytes, second.offset_bytes);
}

TEST_F(SwapTierTest, WriteInPlaceIsReadBackFromItsPlace) {
  make({{}, {}});
  tier_->allocate(1, 4 * kPage);
  const Extent extent = tier_->allocate(1, 4 * kPage);
  fill_pattern(memory_.span(), 7);
  write_in_place(extent);
  Pages back(4 * kPage);
  async::call(*conductor_, nullptr, [&]() -> async::Task<> {
    co_await tier_->read(extent, back.span(), Priority::kDemand, subject_);
  });
  EXPECT_EQ(std::memcmp(back.data(), memory_.data(), back.size()), 0);
}

TEST_F(SwapTierTest, WriteInPlaceNeverMoves) {
  make({{.write_error = EIO}});
  const Extent extent = tier_->allocate(0, 4 * kPage);
  const double before = seconds();
  EXPECT_CODE(Code::kIo, write_in_place(extent),
              "swap out 'h.3.attn' (tile 9): write 16384 bytes of " + tier_->place(extent) +
                  ": got 0, EIO");
  EXPECT_NEAR(seconds() - before, 16384e-9, 1e-9) << "one attempt";
  EXPECT_EQ(tier_->totals().retries, 0u);
  // The rest of the file is still free.
  EXPECT_EQ(tier_->allocate(0, 12 * kPage).offset_bytes, 4 * kPage);
}
}  // namespace
}  // namespace headrace::swap::test
