// SPDX-License-Identifier: Apache-2.0
#include "residency/drive_shares.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

namespace headrace::residency {
namespace {
std::vector<TileExtents> alike(std::size_t count, std::uint64_t record = 100,
                               std::uint64_t weight = 20) {
  return std::vector<TileExtents>(count, {record, weight});
}

std::vector<std::uint64_t> bytes_per_drive(std::span<const TileExtents> tiles,
                                           std::span<const std::uint32_t> dealt,
                                           std::size_t drives) {
  std::vector<std::uint64_t> bytes(drives, 0);
  for (std::size_t t = 0; t < dealt.size(); ++t)
    bytes[dealt[t]] += tiles[t].record_bytes + tiles[t].weight_bytes;
  return bytes;
}

using Dealt = std::vector<std::uint32_t>;

TEST(DriveShares, DrivesThatAreAlikeTakeTurns) {
  EXPECT_EQ(deal_over_drives(alike(7), std::vector<DriveRoom>(3)), (Dealt{0, 1, 2, 0, 1, 2, 0}));
}

TEST(DriveShares, ADriveTwiceAsFastGetsTwoOfEveryThreeTiles) {
  const std::vector<DriveRoom> drives{{.weight = 0.4}, {.weight = 0.8}};
  EXPECT_EQ(deal_over_drives(alike(9), drives), (Dealt{1, 0, 1, 1, 0, 1, 1, 0, 1}));
}

TEST(DriveShares, EveryStretchOfTilesIsSpreadByTheWeights) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<DriveRoom> drives(1 + random() % 5);
    double weights = 0;
    for (DriveRoom& drive : drives) weights += drive.weight = 1 + random() % 1000;
    std::vector<TileExtents> tiles(1 + random() % 400);
    std::uint64_t largest = 0;
    for (TileExtents& tile : tiles) {
      tile = {random() % 8 == 0 ? 0 : random() % 5000, random() % 3 == 0 ? 0 : random() % 1000};
      largest = std::max(largest, tile.record_bytes + tile.weight_bytes);
    }
    const Dealt dealt = deal_over_drives(tiles, drives);
    ASSERT_EQ(deal_over_drives(tiles, drives), dealt) << "a function of its arguments";
    std::vector<double> have(drives.size(), 0);
    double sum = 0;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      const auto bytes = static_cast<double>(tiles[t].record_bytes + tiles[t].weight_bytes);
      have[dealt[t]] += bytes;
      sum += bytes;
      for (std::size_t d = 0; d < drives.size(); ++d) {
        ASSERT_NEAR(have[d], sum * drives[d].weight / weights,
                    static_cast<double>(largest * drives.size()))
            << "drive " << d << " after tile " << t;
      }
    }
  }
}

TEST(DriveShares, ADriveWithLittleRoomGetsWhatFitsSpreadOverAllTiles) {
  const auto tiles = alike(300);
  // 300 x 120 bytes: by weight 24000 on drive 0, which has room for 6000 and one spare extent.
  const std::vector<DriveRoom> drives{{2, 6100}, {1}};
  const Dealt dealt = deal_over_drives(tiles, drives);
  EXPECT_EQ(bytes_per_drive(tiles, dealt, 2), (std::vector<std::uint64_t>{6000, 30000}));
  for (std::size_t at = 0; at + 6 <= dealt.size(); at += 6)
    EXPECT_EQ(std::count(dealt.begin() + static_cast<std::ptrdiff_t>(at),
                         dealt.begin() + static_cast<std::ptrdiff_t>(at + 6), 0u),
              1);
}

TEST(DriveShares, NoDriveGetsMoreThanItsRoomWhereAllOfItFits) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto tiles = alike(100 + random() % 200);
    const std::uint64_t all = tiles.size() * 120;
    std::vector<DriveRoom> drives(2 + random() % 3);
    for (DriveRoom& drive : drives)
      drive = {1.0 + random() % 100, 500 + random() % (all / drives.size())};
    std::uint64_t room = 0;
    for (std::size_t d = 1; d < drives.size(); ++d)
      room += (drives[d].free_bytes - 100) / 120 * 120;
    drives[0].free_bytes = all - std::min(all, room) + 100;  // just enough in sum
    const auto bytes = bytes_per_drive(tiles, deal_over_drives(tiles, drives), drives.size());
    for (std::size_t d = 0; d < drives.size(); ++d)
      EXPECT_LE(bytes[d] + (bytes[d] > 0 ? 100 : 0), drives[d].free_bytes) << "drive " << d;
  }
}

TEST(DriveShares, WhatFitsNowhereGoesToTheDriveWithTheMostRoom) {
  const auto tiles = alike(10);
  const std::vector<DriveRoom> drives{{1, 300}, {1, 500}, {0, 100000}};
  const auto bytes = bytes_per_drive(tiles, deal_over_drives(tiles, drives), 3);
  EXPECT_EQ(bytes[2], 0u) << "a drive of no weight gets nothing";
  EXPECT_TRUE(bytes[0] > 300 || bytes[1] > 500);
}

TEST(DriveShares, ASpeedCountsAsTheStepMovesBytes) {
  EXPECT_DOUBLE_EQ(weight_of_speed(10, 2, 10, 1), 1.0 / 15);
  EXPECT_EQ(weight_of_speed(10, 0, 10, 1), 0);
  EXPECT_EQ(weight_of_speed(0, 3, 0, 1), 3 * weight_of_speed(0, 1, 0, 1.0 / 3)) << "frozen tiles";
  EXPECT_EQ(weight_of_speed(10, 1, 10, 0), 0);
}
}  // namespace
}  // namespace headrace::residency
