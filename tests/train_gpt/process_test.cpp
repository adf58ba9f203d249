// SPDX-License-Identifier: Apache-2.0
// What the kernel says of this process.
#include "process.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace train_gpt {
namespace {
TEST(Process, SeesMemoryInUse) {
  constexpr std::size_t kSize = 64 << 20;
  const std::uint64_t before = resident_bytes();
  ASSERT_GT(before, 0u);
  void* memory = std::malloc(kSize);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 1, kSize);
  EXPECT_GT(resident_bytes(), before + kSize / 2);
  EXPECT_GE(peak_resident_bytes() + (1 << 20), resident_bytes());
  std::free(memory);
}

TEST(Process, HasAtLeastOneCpu) { EXPECT_GE(usable_cpus(), 1u); }
}  // namespace
}  // namespace train_gpt
