// SPDX-License-Identifier: Apache-2.0
#include "pinned/slot_pool.hpp"

#include <gtest/gtest.h>

#include "async/task.hpp"

namespace headrace::pinned {
namespace {
async::Task<> hold(SlotPool& pool, std::vector<int>& order, int name,
                   std::vector<SlotLease>& held) {
  SlotLease lease = co_await pool.acquire();
  order.push_back(name);
  held.push_back(std::move(lease));
}

TEST(SlotPool, HandsASlotToTheLongestWaiting) {
  std::vector<std::byte> memory(128);
  SlotPool pool(memory, 2, 64);
  std::vector<int> order;
  std::vector<SlotLease> held;
  held.reserve(8);
  async::TaskGroup group;
  for (int i = 0; i < 4; ++i) group.spawn(hold(pool, order, i, held));
  EXPECT_EQ(order, (std::vector{0, 1}));
  EXPECT_NE(held[0].bytes().data(), held[1].bytes().data());
  held[1].release();
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
  held[0].release();
  EXPECT_EQ(order, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(pool.free_slots(), 0u);
  held.clear();
  EXPECT_EQ(pool.free_slots(), 2u);
}

TEST(SlotPool, GivesBackWhatAMovedLeaseHeld) {
  std::vector<std::byte> memory(128);
  SlotPool pool(memory, 2, 64);
  std::vector<int> order;
  std::vector<SlotLease> held;
  held.reserve(8);
  async::TaskGroup group;
  group.spawn(hold(pool, order, 0, held));
  group.spawn(hold(pool, order, 1, held));
  held[0] = std::move(held[1]);
  EXPECT_EQ(pool.free_slots(), 1u);
  held.clear();
  EXPECT_EQ(pool.free_slots(), 2u);
}
}  // namespace
}  // namespace headrace::pinned
