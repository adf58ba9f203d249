// SPDX-License-Identifier: Apache-2.0
// GatherOrder: which groups are read ahead.
#include "tiles/gather_order.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace headrace::tiles {
namespace {
class GatherOrderTest : public ::testing::Test {
 protected:
  void gather(std::initializer_list<std::uint32_t> groups) {
    for (const std::uint32_t group : groups) order_.note({group});
  }
  std::vector<std::uint32_t> expected() const {
    std::vector<std::uint32_t> groups;
    for (const GroupId group : order_.expected()) groups.push_back(group.index);
    return groups;
  }
  using Groups = std::vector<std::uint32_t>;

  GatherOrder order_{2};
};

TEST_F(GatherOrderTest, ExpectsWhatTheLastStepGathered) {
  order_.next_step();
  EXPECT_EQ(expected(), Groups{});
  gather({0, 1, 2});
  EXPECT_EQ(expected(), Groups{});
  order_.next_step();
  EXPECT_EQ(expected(), (Groups{0, 1}));
  gather({0});
  EXPECT_EQ(expected(), (Groups{1, 2}));
  EXPECT_TRUE(order_.expects({2}));
  EXPECT_FALSE(order_.expects({0}));
  gather({1, 2});
  EXPECT_EQ(expected(), Groups{});
}

TEST_F(GatherOrderTest, AGroupThatComesTwiceIsTheNextOfThese) {
  order_.next_step();
  gather({0, 1, 2, 1, 0});
  order_.next_step();
  gather({0, 1});
  EXPECT_EQ(expected(), (Groups{2, 1}));
  gather({2, 1});
  EXPECT_EQ(expected(), Groups{0});
}

TEST_F(GatherOrderTest, FollowsAnotherOrderAndKeepsTheGuessWhereNothingWasGathered) {
  order_.next_step();
  gather({0, 1, 2});
  order_.next_step();
  gather({1});  // 0 is left out
  EXPECT_EQ(expected(), Groups{2});
  gather({7});  // never seen: the guess stays
  EXPECT_EQ(expected(), Groups{2});
  order_.next_step();
  EXPECT_EQ(expected(), (Groups{1, 7}));
  order_.next_step();
  EXPECT_EQ(expected(), (Groups{1, 7}));
}
}  // namespace
}  // namespace headrace::tiles
