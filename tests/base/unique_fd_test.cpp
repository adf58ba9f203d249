// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace headrace::base {
namespace {
int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesAtTheBrace) {
  int raw = -1;
  {
    const UniqueFd fd(open_null());
    raw = fd.get();
    ASSERT_TRUE(fd);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFd, HasOneOwnerAfterAMove) {
  UniqueFd first(open_null());
  const int raw = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first);
  EXPECT_EQ(second.get(), raw);
  UniqueFd third(open_null());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_EQ(third.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, ResetClosesOnce) {
  UniqueFd fd(open_null());
  const int raw = fd.get();
  fd.reset();
  EXPECT_FALSE(is_open(raw));
  EXPECT_FALSE(fd);
  fd.reset();
}
}  // namespace
}  // namespace headrace::base
