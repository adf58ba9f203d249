// SPDX-License-Identifier: Apache-2.0
// update_place_test: what "auto" tries, and what it decides.
#include "tiles/update_place.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace::tiles {
namespace {
// Where eight steps were updated, "c" or "d" each, with what a step takes here and there.
std::string places(UpdateOn on, const std::vector<double>& cpu, const std::vector<double>& device) {
  UpdatePlace place(on);
  std::string all;
  for (std::size_t step = 0; step < 8; ++step) {
    all += place.on_device() ? "d" : "c";
    const bool decided = place.note(1000, (place.on_device() ? device : cpu)[step]);
    if (decided) all += "!";
  }
  return all;
}
std::vector<double> always(double seconds) { return std::vector<double>(8, seconds); }

TEST(UpdatePlace, IsWhatTheSettingSays) {
  EXPECT_EQ(places(UpdateOn::kCpu, always(2), always(1)), "cccccccc");
  EXPECT_EQ(places(UpdateOn::kDevice, always(1), always(2)), "dddddddd");
}

TEST(UpdatePlace, IsTheFasterOneOnceBothWereTried) {
  EXPECT_EQ(places(UpdateOn::kAuto, always(2), always(1)), "cdcdcd!dd");
  EXPECT_EQ(places(UpdateOn::kAuto, always(1), always(2)), "cdcdcd!cc");
}

TEST(UpdatePlace, StaysOnTheCpuForLittle) {
  EXPECT_EQ(places(UpdateOn::kAuto, always(1), always(0.96)), "cdcdcd!cc");
  EXPECT_EQ(places(UpdateOn::kAuto, always(1), always(0.94)), "cdcdcd!dd");
}

TEST(UpdatePlace, TakesTheBetterOfTwoAndNotTheFirst) {
  EXPECT_EQ(places(UpdateOn::kAuto, {0, 0, 2, 0, 1, 0, 0, 0}, {0, 0, 0, 3, 0, 0.9, 0, 0}),
            "cdcdcd!dd");
  EXPECT_EQ(places(UpdateOn::kAuto, {9, 0, 1, 0, 1, 0, 0, 0}, {0, 0.1, 0, 2, 0, 2, 0, 0}),
            "cdcdcd!cc");
}

TEST(UpdatePlace, LearnsNothingOfAStepWithoutUpdates) {
  UpdatePlace place(UpdateOn::kAuto);
  for (int step = 0; step < 20; ++step) {
    EXPECT_FALSE(place.note(0, 1));
    EXPECT_FALSE(place.on_device());
  }
}

TEST(UpdatePlace, ComparesTimePerElement) {
  UpdatePlace place(UpdateOn::kAuto);
  for (int step = 0; step < 6; ++step)
    (void)place.note(place.on_device() ? 1000 : 100, place.on_device() ? 2 : 1);
  EXPECT_TRUE(place.on_device());
}
}  // namespace
}  // namespace headrace::tiles
