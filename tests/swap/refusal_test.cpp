// SPDX-License-Identifier: Apache-2.0
#include "swap/refusal.hpp"

#include <gtest/gtest.h>

#include <cerrno>

#include "limits.hpp"
#include "scratch.hpp"

namespace headrace::swap::test {
namespace {
TEST(Refusal, EveryErrnoHasSomethingThatHelps) {
  for (int error = 0; error < 200; ++error) EXPECT_GT(what_helps(error).size(), 10u);
  EXPECT_NE(what_helps(EMFILE).find("ulimit -n"), std::string::npos);
  EXPECT_NE(what_helps(EIO).find("dmesg"), std::string::npos);
}

TEST(Refusal, WhatHelpsNamesThePlaceThatItsUserChose) {
  EXPECT_TRUE(what_helps(ENOSPC).ends_with("or name another nvme_path"));
  EXPECT_NE(what_helps(EROFS, "folder").find("or name another folder; if it"), std::string::npos);
  for (int error = 0; error < 200; ++error)
    EXPECT_EQ(what_helps(error, "folder").find("nvme_path"), std::string::npos) << error;
}

TEST(Refusal, MissingRoomIsNoIoError) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) EXPECT_EQ(code_of(error), Code::kNoSpace);
  EXPECT_EQ(code_of(ETIMEDOUT), Code::kIoStalled);
  EXPECT_EQ(code_of(EIO), Code::kIo);
}

TEST(Refusal, AFileSizeLimitHoldsToTheByte) {
  EXPECT_EQ(in_child([] {
              if (!limit_file_size(8192)) return 10;
              check_file_size_limit("a file", 8192);
              try {
                check_file_size_limit("a file", 8193);
                return 1;
              } catch (const Error& error) {
                return error.sys_errno() == EFBIG ? 0 : 2;
              }
            }),
            0);
}
}  // namespace
}  // namespace headrace::swap::test
