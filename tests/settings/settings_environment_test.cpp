// SPDX-License-Identifier: Apache-2.0
// Which environment variables beat the settings, and what they refuse.
#include <gtest/gtest.h>

#include <cstdlib>

#include "headrace/error.hpp"
#include "settings/environment.hpp"

namespace headrace::settings {
namespace {
class SettingsEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    ::unsetenv("HEADRACE_NUM_THREADS");
    ::unsetenv("HEADRACE_IO_QUEUE");
  }
  static std::string refusal(const char* name, const char* value) {
    ::setenv(name, value, 1);
    try {
      update_threads({});
      io_queue_kind({});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kSettings);
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(SettingsEnvironment, LeavesTheSettingsAloneWhereItIsNotSetOrEmpty) {
  Settings settings;
  settings.update_threads = 3;
  settings.io_queue = IoQueueKind::kThreads;
  EXPECT_EQ(update_threads(settings), 3u);
  EXPECT_EQ(io_queue_kind(settings), IoQueueKind::kThreads);
  ::setenv("HEADRACE_NUM_THREADS", "", 1);
  ::setenv("HEADRACE_IO_QUEUE", "", 1);
  EXPECT_EQ(update_threads(settings), 3u);
  EXPECT_EQ(io_queue_kind(settings), IoQueueKind::kThreads);
}

TEST_F(SettingsEnvironment, BeatsTheSettings) {
  Settings settings;
  settings.update_threads = 3;
  settings.io_queue = IoQueueKind::kThreads;
  ::setenv("HEADRACE_NUM_THREADS", "1024", 1);
  EXPECT_EQ(update_threads(settings), 1024u);
  ::setenv("HEADRACE_IO_QUEUE", "auto", 1);
  EXPECT_EQ(io_queue_kind(settings), IoQueueKind::kAuto);
  ::setenv("HEADRACE_IO_QUEUE", "uring", 1);
  EXPECT_EQ(io_queue_kind(settings), IoQueueKind::kUring);
}

TEST_F(SettingsEnvironment, RefusesWhatItCannotMeanByNameAndSaysWhatHelps) {
  for (const char* bad : {"0", "1025", "-1", "2x", " 2", "four", "99999999999"}) {
    EXPECT_EQ(refusal("HEADRACE_NUM_THREADS", bad),
              "HEADRACE_NUM_THREADS='" + std::string(bad) +
                  "': it must be a number from 1 to 1024; set it so, or unset it");
  }
  clear();
  EXPECT_EQ(refusal("HEADRACE_IO_QUEUE", "io_uring"),
            "HEADRACE_IO_QUEUE='io_uring': it must be auto, uring, aio or threads; set it so, or "
            "unset it");
}
}  // namespace
}  // namespace headrace::settings
