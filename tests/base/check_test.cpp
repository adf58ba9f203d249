// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"

#include <gtest/gtest.h>

namespace headrace::base {
namespace {
TEST(CheckDeathTest, NamesPlaceConditionAndReason) {
  EXPECT_DEATH(HEADRACE_CHECK(1 > 2, "one is not more than two"),
               "headrace: bug: .*check_test.cpp:[0-9]+: 1 > 2 is false: one is not more than two");
}

TEST(Check, PassesWithoutATrace) {
  int evaluated = 0;
  HEADRACE_CHECK(++evaluated == 1, "evaluated once");
  EXPECT_EQ(evaluated, 1);
}
}  // namespace
}  // namespace headrace::base
