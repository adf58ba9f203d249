// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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

TEST_F(Log, DropsInfosUnlessAskedForThem) {
  EXPECT_EQ(printed(LogLevel::kInfo, "chosen"), "");
  ::setenv("HEADRACE_LOG", "info", 1);
  EXPECT_EQ(printed(LogLevel::kInfo, "chosen"), "headrace: info: chosen\n");
  ::setenv("HEADRACE_LOG", "warning", 1);
  EXPECT_EQ(printed(LogLevel::kInfo, "chosen"), "");
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
