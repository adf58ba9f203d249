// SPDX-License-Identifier: Apache-2.0
// child_processes_test.cpp: children that sleep, die and disobey: a test that has them ends in
// time, says what they said, and leaves none behind.
#include "support/child_processes.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace headrace::testing {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr seconds kLong(60);

std::vector<std::string> script(const std::string& text) { return {"/bin/sh", "-c", text}; }
bool lives(pid_t process) { return ::kill(process, 0) == 0; }

TEST(ChildProcesses, EndAndSayWhatTheySaid) {
  ChildProcesses children;
  children.start(script("echo out; echo err >&2; exit 3"));
  children.start(script("echo $WORD; kill -9 $$"), {"WORD=given"});
  const std::vector<ChildEnd> ends = children.wait(kLong);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].exit_code, 3);
  EXPECT_EQ(ends[0].said, "out\nerr\n");
  EXPECT_EQ(ends[1].exit_code, -SIGKILL);
  EXPECT_FALSE(ends[1].killed) << "it did that itself";
  EXPECT_EQ(ends[1].said, "given\n");
}

TEST(ChildProcesses, HaveVariablesThatThisProcessHasOtherwise) {
  ::setenv("HEADRACE_CHILD_WORD", "inherited", 1);
  ChildProcesses children;
  children.start(script("echo $HEADRACE_CHILD_WORD"));
  children.start(script("echo $HEADRACE_CHILD_WORD"), {"HEADRACE_CHILD_WORD=own"});
  const std::vector<ChildEnd> ends = children.wait(kLong);
  EXPECT_EQ(ends[0].said, "inherited\n");
  EXPECT_EQ(ends[1].said, "own\n");
}

TEST(ChildProcesses, AreKilledAtTheDeadlineAndItIsSaid) {
  ChildProcesses children;
  children.start(script("echo begun; trap '' TERM INT; exec sleep 600"));
  ASSERT_TRUE(children.wait_for(0, "begun", kLong));
  const auto started = std::chrono::steady_clock::now();
  const std::vector<ChildEnd> ends = children.wait(milliseconds(50));
  EXPECT_LT(std::chrono::steady_clock::now() - started, kLong);
  EXPECT_TRUE(ends[0].killed);
  EXPECT_EQ(ends[0].exit_code, -SIGKILL);
  EXPECT_EQ(describe(ends),
            "process 0 did not end in time and was killed; it last said:\nbegun\n\n");
}

TEST(ChildProcesses, AreWaitedForUntilTheySaySomething) {
  ChildProcesses children;
  children.start(script("sleep 0.05; echo ready; exec sleep 600"));
  children.start(script("echo other"));
  EXPECT_TRUE(children.wait_for(0, "ready", kLong));
  EXPECT_FALSE(children.wait_for(0, "never", milliseconds(20)));
  EXPECT_FALSE(children.wait_for(1, "ready", kLong)) << "it ended without";
  children.signal(0, SIGTERM);
  const std::vector<ChildEnd> ends = children.wait(kLong);
  EXPECT_EQ(ends[0].exit_code, -SIGTERM);
  EXPECT_FALSE(ends[0].killed);
}

TEST(ChildProcesses, ShareAFolderThatGoesWithThem) {
  std::string path;
  {
    ChildProcesses children;
    path = children.folder().string();
    children.start(script("echo shared > " + path + "/file"));
    children.wait(kLong);
    children.start(script("cat " + path + "/file"));
    EXPECT_EQ(children.wait(kLong)[1].said, "shared\n");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ChildProcesses, DoNotOutliveTheirTest) {
  pid_t process = 0;
  {
    ChildProcesses children;
    children.start(script("echo $$; exec sleep 600"));
    ASSERT_TRUE(children.wait_for(0, "\n", kLong));
    std::ifstream(children.folder().path() / "said-0") >> process;
    EXPECT_TRUE(lives(process));
  }
  EXPECT_FALSE(lives(process));
}

// As a test program is ended by who runs it. Both it and its child hold the pipe.
TEST(ChildProcesses, DoNotOutliveAProcessThatIsKilled) {
  const TemporaryDirectory folder;
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t tester = ::fork();
  if (tester == 0) {
    std::filesystem::current_path(folder.path());
    ChildProcesses children;
    children.start(script("echo begun; exec sleep 600"));
    const bool begun = children.wait_for(0, "begun", kLong);
    if (::write(ends[1], begun ? "y" : "n", 1) == 1) ::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }
  ::close(ends[1]);
  char begun = 0;
  EXPECT_EQ(::read(ends[0], &begun, 1), 1);
  EXPECT_EQ(begun, 'y');
  ::waitpid(tester, nullptr, 0);
  pollfd closed = {.fd = ends[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&closed, 1, 60'000), 1) << "its child still runs";
  EXPECT_TRUE(closed.revents & POLLHUP);
  ::close(ends[0]);
}
}  // namespace
}  // namespace headrace::testing
