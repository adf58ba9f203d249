// SPDX-License-Identifier: Apache-2.0
// tile_places_test: a write never goes where a commit record points, and no generation comes twice.
#include "tiles/tile_places.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/sizes.hpp"
#include "swap/io_buffer.hpp"

namespace headrace::tiles {
namespace {
using partition::Partition;
using swap::Extent;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kTrained = 0, kSecond = 1, kFrozen = 2;

// Two tiles of one group, and one of a frozen one.
Partition three_tiles() {
  const auto elements = static_cast<std::int64_t>(2 * base::kBlockElements);
  ParameterSpec frozen{"weight", DType::kBf16, {64}, {}};
  frozen.frozen = true;
  const std::vector<partition::GroupShape> groups = {{{{"weight", DType::kBf16, {elements}, {}}}},
                                                     {{frozen}}};
  return partition::make_partition(groups, base::kBlockElements, 0, 1);
}

residency::Plan all_on_nvme(const Partition& partition, bool durable) {
  residency::Plan plan;
  plan.sections.resize(partition.sections.size());
  for (residency::SectionPlan& section : plan.sections) section.weight = Tier::kNvme;
  plan.tiles.resize(partition.tiles.size());
  plan.drive_bytes = {64 * kPage};
  plan.commit_every = durable ? 1 : 0;
  for (std::uint32_t t = 0; t < plan.tiles.size(); ++t) {
    plan.tiles[t].weight_bytes = kPage;
    if (partition.section_of(t).frozen) continue;
    plan.tiles[t].record = Tier::kNvme;
    plan.tiles[t].layout.size_bytes = 2 * kPage;
  }
  return plan;
}

class TilePlacesTest : public ::testing::Test {
 protected:
  void allocate(TilePlaces& places) {
    places.allocate([&](std::uint32_t drive, std::uint64_t bytes) {
      given_.push_back({drive, next_, bytes});
      next_ += bytes;
      return given_.back();
    });
  }
  swap::CommitRecord new_record() {
    const swap::CommitCounts counts{
        .tiles = static_cast<std::uint32_t>(partition_.tiles.size()),
        .weight_checksums = TilePlaces::weight_checksums_in(partition_)};
    const std::uint64_t bytes = swap::CommitRecord::place_bytes(counts);
    memory_ = swap::make_io_buffer(bytes);
    return swap::CommitRecord::make({memory_.get(), bytes}, counts, {});
  }
  static void write(TilePlaces& places, std::uint32_t tile) {
    places.note_written(tile, places.target_of(tile));
  }
  static bool same(const TilePlace& a, const TilePlace& b) {
    return a.weight == b.weight && a.record == b.record;
  }

  const Partition partition_ = three_tiles();
  const residency::Plan plan_ = all_on_nvme(partition_, true);
  std::vector<Extent> given_;
  std::uint64_t next_ = kPage;
  swap::IoBuffer memory_ = nullptr;
};

TEST_F(TilePlacesTest, WithoutAStoreATileIsWrittenWhereItLies) {
  const residency::Plan plan = all_on_nvme(partition_, false);
  TilePlaces places(partition_, plan);
  allocate(places);
  ASSERT_EQ(given_.size(), 5u) << "three weights and two records";
  EXPECT_TRUE(std::ranges::is_sorted(given_, std::ranges::less{}, &Extent::size_bytes));
  EXPECT_EQ(places.records_beside(kTrained), 2u);
  const TilePlace before = places.current(kTrained);
  for (std::uint64_t generation = 1; generation < 4; ++generation) {
    write(places, kTrained);
    EXPECT_TRUE(same(places.current(kTrained), before));
    EXPECT_EQ(places.generation(kTrained), generation);
  }
  EXPECT_TRUE(places.may_be_written(kFrozen));
}

TEST_F(TilePlacesTest, AWriteGoesToTheSlotThatNoRecordNames) {
  TilePlaces places(partition_, plan_);
  allocate(places);
  ASSERT_EQ(given_.size(), 9u) << "two slots of what is trained, one of what is frozen";
  const TilePlace first = places.current(kTrained);
  write(places, kTrained);
  EXPECT_TRUE(same(places.current(kTrained), first)) << "nothing was committed";
  places.note_committed();
  EXPECT_TRUE(places.as_committed());
  const TilePlace second = places.target_of(kTrained);
  EXPECT_NE(second.weight, first.weight);
  EXPECT_NE(second.record, first.record);
  for (int i = 0; i < 2; ++i) {
    write(places, kTrained);
    EXPECT_FALSE(places.as_committed());
    EXPECT_TRUE(same(places.current(kTrained), second)) << "the record still names the first";
  }
  places.note_committed();
  EXPECT_TRUE(same(places.target_of(kTrained), first));
}

TEST_F(TilePlacesTest, AWriteThatFailsElsewhereIsRepeatedThereAndTheCommittedSlotStays) {
  TilePlaces places(partition_, plan_);
  allocate(places);
  const auto fail = [&] {
    TilePlace moved = places.target_of(kTrained);
    moved.weight.offset_bytes = next_;
    next_ += kPage;
    places.note_moved(kTrained, moved);
    EXPECT_TRUE(same(places.target_of(kTrained), moved));
    return moved;
  };
  const TilePlace first = fail();
  write(places, kTrained);
  EXPECT_TRUE(same(places.current(kTrained), first));
  const swap::CommitRecord record = new_record();
  places.describe(record);
  places.note_committed();
  const TilePlace second = fail();
  EXPECT_TRUE(same(places.current(kTrained), first));
  EXPECT_TRUE(places.as_committed());
  places.go_back(record);
  EXPECT_TRUE(same(places.target_of(kTrained), second));
}

TEST_F(TilePlacesTest, WhatIsNeverTrainedIsWrittenUntilItIsCommitted) {
  TilePlaces places(partition_, plan_);
  allocate(places);
  EXPECT_TRUE(places.may_be_written(kFrozen));
  write(places, kFrozen);
  EXPECT_TRUE(places.may_be_written(kFrozen));
  places.note_committed();
  EXPECT_FALSE(places.may_be_written(kFrozen));
  EXPECT_TRUE(places.may_be_written(kTrained));
}

TEST_F(TilePlacesTest, WhatLivesInMemoryIsToBeWrittenBackAfterEveryWrite) {
  residency::Plan plan = plan_;
  plan.tiles[kSecond].record = Tier::kHost;
  TilePlaces places(partition_, plan);
  allocate(places);
  write(places, kTrained);
  write(places, kSecond);
  EXPECT_FALSE(places.to_write_back(kTrained));
  EXPECT_TRUE(places.to_write_back(kSecond));
  TilePlace moved = places.current(kSecond);
  moved.record.offset_bytes = next_;
  places.note_written_back(kSecond, moved);
  EXPECT_FALSE(places.to_write_back(kSecond));
  EXPECT_TRUE(same(places.current(kSecond), moved));
}

TEST_F(TilePlacesTest, ARecordBringsBackPlacesGenerationsAndChecksums) {
  TilePlaces places(partition_, plan_);
  allocate(places);
  for (std::uint32_t t = 0; t < 3; ++t) write(places, t);
  places.note_committed();
  write(places, kSecond);
  places.weight_checksums(kSecond)[0] = 17;
  const swap::CommitRecord record = new_record();
  places.describe(record);
  places.note_committed();

  TilePlaces again(partition_, plan_);
  std::vector<Extent> taken;
  constexpr std::uint64_t kIncarnation = 3;
  again.restore(record, kIncarnation, [&](const Extent& extent) { taken.push_back(extent); });
  EXPECT_TRUE(std::ranges::is_permutation(taken, given_));
  EXPECT_TRUE(again.as_committed());
  for (std::uint32_t t = 0; t < 3; ++t) {
    EXPECT_TRUE(same(again.current(t), places.current(t))) << t;
    EXPECT_EQ(again.generation(t), places.generation(t)) << t;
    EXPECT_TRUE(t == kFrozen || same(again.target_of(t), places.target_of(t))) << t;
    EXPECT_GT(again.next_generation(t), kIncarnation << 40) << "larger than in any run before";
  }
  EXPECT_EQ(again.weight_checksums(kSecond)[0], 17u);
}

TEST_F(TilePlacesTest, GoingBackUndoesWhatWasWrittenAndUsesNoGenerationTwice) {
  TilePlaces places(partition_, plan_);
  allocate(places);
  for (std::uint32_t t = 0; t < 3; ++t) write(places, t);
  const swap::CommitRecord record = new_record();
  places.weight_checksums(kTrained)[0] = 1;
  places.describe(record);
  places.note_committed();
  const TilePlace committed = places.current(kTrained);
  write(places, kTrained);
  places.weight_checksums(kTrained)[0] = 2;
  const std::uint64_t undone = places.generation(kTrained),
                      failed = places.next_generation(kSecond);
  places.go_back(record);
  EXPECT_TRUE(places.as_committed());
  EXPECT_TRUE(same(places.current(kTrained), committed));
  EXPECT_EQ(places.generation(kTrained), 1u);
  EXPECT_EQ(places.weight_checksums(kTrained)[0], 1u);
  EXPECT_GT(places.next_generation(kTrained), undone);
  EXPECT_GT(places.next_generation(kSecond), failed);
  EXPECT_FALSE(same(places.target_of(kTrained), committed));
}
}  // namespace
}  // namespace headrace::tiles
