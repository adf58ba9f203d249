// SPDX-License-Identifier: Apache-2.0
#include "base/error_text.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

#include "headrace/error.hpp"
#include "headrace/version.hpp"

namespace headrace::base {
namespace {
constexpr std::string_view kWords[] = {"offload_optimizer", "offload_param", "nvme_path", "device",
                                       "buffer_count"};

TEST(ErrorText, GivesErrnoItsName) {
  EXPECT_EQ(errno_text(EIO), "EIO (Input/output error)");
  EXPECT_EQ(errno_text(ENOSPC), "ENOSPC (No space left on device)");
  EXPECT_EQ(errno_text(4242), "errno 4242");
}

TEST(ErrorText, FindsTheNearestWord) {
  EXPECT_EQ(nearest_word("offload_optimiser", kWords), "offload_optimizer");
  EXPECT_EQ(nearest_word("offload_params", kWords), "offload_param");
  EXPECT_EQ(nearest_word("nvmepath", kWords), "nvme_path");
  EXPECT_EQ(nearest_word("devcie", kWords), "device");
  EXPECT_EQ(nearest_word("device", kWords), "device");
}

TEST(ErrorText, FindsNoWordWhereNoneIsNear) {
  EXPECT_EQ(nearest_word("learning_rate", kWords), "");
  EXPECT_EQ(nearest_word("x", kWords), "");
  EXPECT_EQ(nearest_word("", kWords), "");
  EXPECT_EQ(nearest_word("device", {}), "");
}

TEST(ErrorText, AShortWordMayBeTwoEditsAway) {
  EXPECT_EQ(nearest_word("dvic", kWords), "device");
  EXPECT_EQ(nearest_word("dic", kWords), "");
}

TEST(ErrorText, TheFirstOfTwoEquallyNearWordsIsTaken) {
  constexpr std::string_view words[] = {"beta1", "beta2"};
  EXPECT_EQ(nearest_word("beta3", words), "beta1");
}

TEST(Error, CarriesCodeErrnoAndText) {
  const Error error(Code::kNoSpace, "the drive is full", ENOSPC);
  EXPECT_EQ(error.code(), Code::kNoSpace);
  EXPECT_EQ(error.sys_errno(), ENOSPC);
  EXPECT_STREQ(error.what(), "the drive is full");
  EXPECT_EQ(Error(Code::kFailed, "").sys_errno(), 0);
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Code::kFailed); ++code) {
    names.insert(code_name(static_cast<Code>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Code::kFailed) + 1);
  EXPECT_EQ(names.count("unknown code"), 0u);
  EXPECT_STREQ(code_name(static_cast<Code>(4242)), "unknown code");
}

TEST(Version, IsTheThreeNumbers) {
  EXPECT_EQ(std::string(version()), std::to_string(HEADRACE_VERSION_MAJOR) + "." +
                                        std::to_string(HEADRACE_VERSION_MINOR) + "." +
                                        std::to_string(HEADRACE_VERSION_PATCH));
}

TEST(QuotedName, KeepsANameOnOneLine) {
  EXPECT_EQ(quoted_name("h.0.w"), "'h.0.w'");
  EXPECT_EQ(quoted_name("a\n\x1b[31mb\x7f"), "'a\\u000a\\u001b[31mb\\u007f'");
  EXPECT_EQ(quoted_name(std::string(300, 'x')), "'" + std::string(200, 'x') + "...'");
}
}  // namespace
}  // namespace headrace::base
