// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

namespace headrace::base::random_test {
namespace {
TEST(Random, FillsEveryByteOfALengthThatTakesSeveralCalls) {
  std::array<std::byte, 1000> seen{};
  // A byte stays zero 20 times by chance in one of 2^160 tries.
  for (int i = 0; i < 20; ++i) {
    std::array<std::byte, 1000> bytes{};
    fill_random(bytes);
    for (std::size_t at = 0; at < bytes.size(); ++at) seen[at] |= bytes[at];
  }
  EXPECT_EQ(std::ranges::count(seen, std::byte{0}), 0);
}

TEST(Random, GivesNoNumberTwice) {
  std::set<std::uint64_t> numbers;
  for (int i = 0; i < 1000; ++i) numbers.insert(random_number());
  EXPECT_EQ(numbers.size(), 1000u);
}
}  // namespace
}  // namespace headrace::base::random_test
