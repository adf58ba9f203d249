// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "headrace/error.hpp"

namespace headrace::base {
namespace {
std::string printed(LogLevel level, std::string_view text) {
  ::testing::internal::CaptureStderr();
  log_to_stderr(level, text);
  return ::testing::internal::GetCapturedStderr();
}

class Log : public ::testing::Test {
 protected:
  void SetUp() override { ::unsetenv("HEADRACE_LOG"); }
  void TearDown() override { ::unsetenv("HEADRACE_LOG"); }
};

TEST_F(Log, WritesOneLineWithTheLevel) {
  EXPECT_EQ(printed(LogLevel::kWarning, "io_uring was refused"),
            "headrace: warning: io_uring was refused\n");
  EXPECT_EQ(printed(LogLevel::kError, "x"), "headrace: error: x\n");
}

TEST_F(Log, ShowsTheLevelsFromTheOneThatIsNamed) {
  const auto shown = [](const char* word) {
    word == nullptr ? ::unsetenv("HEADRACE_LOG") : ::setenv("HEADRACE_LOG", word, 1);
    std::string levels;
    for (const LogLevel level : {LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
      const std::string text = printed(level, "x");
      EXPECT_EQ(!text.empty(), log_wanted(level)) << word;
      if (!text.empty()) levels += text.substr(10, 1);
    }
    return levels;
  };
  EXPECT_EQ(shown(nullptr), "we");
  EXPECT_EQ(shown(""), "we");
  EXPECT_EQ(shown("info"), "iwe");
  EXPECT_EQ(shown("warning"), "we");
  EXPECT_EQ(shown("error"), "e");
  EXPECT_EQ(shown("off"), "");
  EXPECT_EQ(shown("foo"), "we") << "refused elsewhere; a sink must not throw";
}

TEST_F(Log, RefusesAWordThatNamesNoLevel) {
  for (const char* word : {"foo", "Info", "warn", "1", " "}) {
    ::setenv("HEADRACE_LOG", word, 1);
    try {
      sink_or_stderr(nullptr);
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kSettings);
      EXPECT_EQ(std::string(error.what()), "HEADRACE_LOG='" + std::string(word) +
                                               "': it must be off, error, warning or info; set it "
                                               "so, or unset it");
    }
  }
}

TEST_F(Log, GoesToTheHostsSinkWhereThereIsOne) {
  std::string seen;
  const LogSink sink = sink_or_stderr([&](LogLevel level, std::string_view text) {
    seen = std::to_string(int(level)) + ":" + std::string(text);
  });
  ::testing::internal::CaptureStderr();
  sink(LogLevel::kError, "mine");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(seen, "2:mine");
}

TEST_F(Log, GoesToStderrWhereThereIsNoSink) {
  const LogSink sink = sink_or_stderr(nullptr);
  ::testing::internal::CaptureStderr();
  sink(LogLevel::kError, "mine");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "headrace: error: mine\n");
}
}  // namespace
}  // namespace headrace::base
