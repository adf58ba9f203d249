// SPDX-License-Identifier: Apache-2.0
// Exit codes and the words of errors.
#include "failures.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>

namespace train_gpt {
namespace {
using headrace::Code;
using headrace::Error;

TEST(ExitCode, IsTwoForWhatIsRefusedBeforeTheFirstStep) {
  for (const Code code : {Code::kSettings, Code::kOutOfBudget, Code::kNotFound, Code::kUnsupported,
                          Code::kNoSpace, Code::kInvalidArgument}) {
    EXPECT_EQ(exit_code_for(Error(code, "x"), false), 2) << headrace::code_name(code);
    EXPECT_EQ(exit_code_for(Error(code, "x"), true), 1) << headrace::code_name(code);
  }
}

TEST(ExitCode, TellsABadPathFromABadDrive) {
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EACCES), false), 2);
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EROFS), false), 2);
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EIO), false), 1);
  EXPECT_EQ(exit_code_for(Error(Code::kIo, "x", EACCES), true), 1);
  EXPECT_EQ(exit_code_for(Error(Code::kNotFinite, "x"), false), 1);
}

TEST(ExitCode, NamesTheSignalWhateverItBroke) {
  const Failure told = describe(Error(Code::kInterrupted, "gather: interrupted"), true, 2);
  EXPECT_EQ(told.exit_code, 130);
  EXPECT_EQ(told.text, "ended by SIGINT.");
  const Failure broke = describe(Error(Code::kIo, "short read", EIO), true, 15);
  EXPECT_EQ(broke.exit_code, 143);
  EXPECT_EQ(broke.code, "kInterrupted");
  EXPECT_EQ(broke.text, "ended by SIGTERM: short read");
  EXPECT_EQ(describe(std::runtime_error("x"), false, 15).exit_code, 143);
}

TEST(Describe, GivesCodeAndWords) {
  const Failure ours = describe(Error(Code::kNoSpace, "full"), false, 0);
  EXPECT_EQ(ours.code, "kNoSpace");
  EXPECT_EQ(ours.text, "full");
  EXPECT_EQ(ours.exit_code, 2);
  EXPECT_EQ(describe(std::bad_alloc(), true, 0).code, "kOutOfMemory");
  EXPECT_EQ(describe(std::runtime_error("odd"), true, 0).text, "odd");
}

TEST(ErrnoText, HasNameAndMeaning) {
  EXPECT_EQ(errno_text(EACCES), "EACCES (Permission denied)");
  EXPECT_EQ(errno_text(99999), "errno 99999");
}
}  // namespace
}  // namespace train_gpt
