// SPDX-License-Identifier: Apache-2.0
#include "base/intrusive_list.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>

namespace headrace::base {
namespace {
struct Node {
  int value = 0;
  Node* next = nullptr;
};
struct Derived : Node {};  // on a list of its base
using Queue = IntrusiveQueue<&Node::next>;
using Stack = IntrusiveStack<&Node::next>;

TEST(IntrusiveQueue, GivesBackInTheOrderOfArrival) {
  std::array<Derived, 3> nodes;
  Queue queue;
  EXPECT_TRUE(queue.empty());
  for (Derived& node : nodes) queue.push(node);
  EXPECT_EQ(queue.front(), &nodes[0]);
  for (Derived& node : nodes) EXPECT_EQ(queue.pop(), &node);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.pop(), nullptr);
  EXPECT_EQ(queue.front(), nullptr);
}

TEST(IntrusiveQueue, ANodeThatWasTakenKnowsTheListNoMore) {
  std::array<Node, 2> nodes;
  Queue queue;
  for (Node& node : nodes) queue.push(node);
  EXPECT_EQ(queue.pop()->next, nullptr);
}

TEST(IntrusiveQueue, TakingAllLeavesItEmptyAndUsable) {
  std::array<Node, 4> nodes;
  Queue queue;
  for (Node& node : nodes) queue.push(node);
  Queue taken = queue.take_all();
  EXPECT_TRUE(queue.empty());
  Node other;
  queue.push(other);
  for (Node& node : nodes) EXPECT_EQ(taken.pop(), &node);
  EXPECT_TRUE(taken.empty());
  EXPECT_EQ(queue.pop(), &other);
}

TEST(IntrusiveQueue, HoldsItsOrderThroughRandomUse) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::deque<Node*> expected;
  Queue queue;
  for (int i = 0; i < 1000; ++i) {
    if (random() % 2 == 0) {
      expected.push_back(std::make_unique<Node>(Node{.value = i}).release());
      queue.push(*expected.back());
    } else if (!expected.empty()) {
      // Freed at once: the queue holds no pointer to what it gave back.
      const std::unique_ptr<Node> popped(queue.pop());
      ASSERT_EQ(popped.get(), expected.front());
      expected.pop_front();
    }
    ASSERT_EQ(queue.empty(), expected.empty());
  }
  while (Node* const node = queue.pop()) delete node;
}

TEST(IntrusiveStack, GivesBackTheLatestFirst) {
  std::array<Node, 3> nodes;
  Stack stack;
  EXPECT_EQ(stack.pop(), nullptr);
  for (Node& node : nodes) stack.push(node);
  Stack taken = stack.take_all();
  EXPECT_TRUE(stack.empty());
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    EXPECT_EQ(taken.front(), &*node);
    EXPECT_EQ(taken.pop(), &*node);
    EXPECT_EQ(node->next, nullptr);
  }
  EXPECT_TRUE(taken.empty());
}
}  // namespace
}  // namespace headrace::base
