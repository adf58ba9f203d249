// SPDX-License-Identifier: Apache-2.0
#include "swap/extents.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace headrace::swap {
namespace {
constexpr std::uint64_t kPage = 4096;

TEST(ExtentAllocator, GivesOutTheFileFromItsStart) {
  ExtentAllocator extents(3, 8 * kPage);
  EXPECT_EQ(extents.allocate(2 * kPage), (Extent{3, 0, 2 * kPage}));
  EXPECT_EQ(extents.allocate(kPage), (Extent{3, 2 * kPage, kPage}));
  EXPECT_EQ(extents.free_bytes(), 5 * kPage);
}

TEST(ExtentAllocator, RoundsSizesUpToWholePages) {
  ExtentAllocator extents(0, 4 * kPage);
  EXPECT_EQ(extents.allocate(1)->size_bytes, kPage);
  EXPECT_EQ(extents.allocate(kPage + 1)->size_bytes, 2 * kPage);
}

TEST(ExtentAllocator, ReusesTheFreedExtentFirst) {
  ExtentAllocator extents(0, 16 * kPage);
  const Extent first = *extents.allocate(3 * kPage);
  extents.allocate(kPage);
  extents.free(first);
  EXPECT_EQ(extents.allocate(2 * kPage)->offset_bytes, first.offset_bytes);
}

TEST(ExtentAllocator, RefusesWhatDoesNotFitInOnePiece) {
  ExtentAllocator extents(0, 4 * kPage);
  const Extent a = *extents.allocate(kPage);
  extents.allocate(kPage);
  const Extent c = *extents.allocate(kPage);
  extents.allocate(kPage);
  extents.free(a);
  extents.free(c);
  EXPECT_EQ(extents.free_bytes(), 2 * kPage);
  EXPECT_FALSE(extents.allocate(2 * kPage).has_value());
  EXPECT_FALSE(extents.allocate(~std::uint64_t{0}).has_value());
  EXPECT_EQ(extents.free_bytes(), 2 * kPage) << "a refusal takes nothing";
}

TEST(ExtentAllocator, MergesFreedNeighboursAtTheTailToo) {
  ExtentAllocator extents(0, 6 * kPage);
  const Extent a = *extents.allocate(2 * kPage);
  const Extent b = *extents.allocate(2 * kPage);
  const Extent c = *extents.allocate(kPage);
  extents.free(c);  // joins the free tail
  extents.free(a);
  extents.free(b);  // joins both sides
  EXPECT_EQ(extents.allocate(6 * kPage), (Extent{0, 0, 6 * kPage}));
}

TEST(ExtentAllocatorDeathTest, TrapsOnADoubleFreeAndOnAForeignExtent) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  ExtentAllocator extents(1, 4 * kPage);
  const Extent a = *extents.allocate(2 * kPage);
  EXPECT_DEATH(extents.free({2, a.offset_bytes, a.size_bytes}), "extent");
  EXPECT_DEATH(extents.free({1, a.offset_bytes, kPage}), "extent");
  extents.free(a);
  EXPECT_DEATH(extents.free(a), "extent");
}

// Against a map of pages: nothing overlaps, nothing is lost, and a refusal is always true.
TEST(ExtentAllocator, AgreesWithAMapOfPagesOverRandomCalls) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    constexpr std::size_t kPages = 200;
    ExtentAllocator extents(0, kPages * kPage);
    std::vector<bool> used(kPages);
    std::vector<Extent> held;
    for (int i = 0; i < 2000; ++i) {
      if (!held.empty() && random() % 5 < 2) {
        const std::size_t which = random() % held.size();
        const Extent extent = held[which];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        extents.free(extent);
        for (std::uint64_t p = 0; p < extent.size_bytes / kPage; ++p) {
          used[extent.offset_bytes / kPage + p] = false;
        }
        continue;
      }
      const std::size_t pages = 1 + random() % 20;
      std::size_t run = 0, fits = kPages;
      for (std::size_t p = 0; p < kPages && fits == kPages; ++p) {
        run = used[p] ? 0 : run + 1;
        if (run == pages) fits = p + 1 - pages;
      }
      const auto extent = extents.allocate(pages * kPage - random() % kPage);
      ASSERT_EQ(extent.has_value(), fits != kPages);
      if (!extent) continue;
      ASSERT_EQ(extent->offset_bytes, fits * kPage) << "first fit";
      ASSERT_EQ(extent->size_bytes, pages * kPage);
      for (std::size_t p = 0; p < pages; ++p) used[fits + p] = true;
      held.push_back(*extent);
      ASSERT_EQ(extents.free_bytes(),
                kPage * static_cast<std::uint64_t>(std::count(used.begin(), used.end(), false)));
    }
    for (const Extent& extent : held) extents.free(extent);
    EXPECT_TRUE(extents.allocate(kPages * kPage).has_value());
  }
}
}  // namespace
}  // namespace headrace::swap
