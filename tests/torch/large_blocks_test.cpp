// SPDX-License-Identifier: Apache-2.0
// large_blocks_test: the reference trainer's large tensors take each other's memory over.
#include "../examples/train_gpt/large_blocks.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace train_gpt {
namespace {
constexpr std::size_t kMiB = 1 << 20;

TEST(LargeBlocks, AFreedBlockIsTheNextOfItsSize) {
  LargeBlocks blocks(*c10::GetDefaultCPUAllocator());
  c10::DataPtr first = blocks.allocate(2 * kMiB);
  void* const memory = first.get();
  first.clear();
  EXPECT_EQ(blocks.kept_bytes(), 2 * kMiB);
  const c10::DataPtr other = blocks.allocate(2 * kMiB + 64);
  EXPECT_NE(other.get(), memory);
  const c10::DataPtr same = blocks.allocate(2 * kMiB);
  EXPECT_EQ(same.get(), memory);
  EXPECT_EQ(blocks.kept_bytes(), 0u);
}

TEST(LargeBlocks, SmallOnesAreNotKept) {
  LargeBlocks blocks(*c10::GetDefaultCPUAllocator());
  blocks.allocate(LargeBlocks::kLarge - 1).clear();
  EXPECT_EQ(blocks.kept_bytes(), 0u);
}

TEST(LargeBlocks, KeepsAFewTimesTheLargestAndLetsTheOldestGo) {
  LargeBlocks blocks(*c10::GetDefaultCPUAllocator());
  std::vector<c10::DataPtr> taken;
  for (std::size_t i = 0; i < 10; ++i) taken.push_back(blocks.allocate((1 + i % 2) * kMiB));
  const void* const last = taken.back().get();
  for (c10::DataPtr& block : taken) block.clear();
  EXPECT_LE(blocks.kept_bytes(), LargeBlocks::kKept * 2 * kMiB);
  EXPECT_GT(blocks.kept_bytes(), (LargeBlocks::kKept - 1) * 2 * kMiB);
  EXPECT_EQ(blocks.allocate(2 * kMiB).get(), last);
}
}  // namespace
}  // namespace train_gpt
