// SPDX-License-Identifier: Apache-2.0
// child_processes_test.cpp: children that sleep, die and disobey: a test that has them ends in
// time, says what they said, and leaves none behind.
#include "support/child_processes.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

namespace headrace::testing {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr seconds kLong(60);

std::vector<std::string> script(const std::string& text) { return {"/bin/sh", "-c", text}; }
bool lives(pid_t process) { return ::kill(process, 0) == 0; }
// Of a child that said it.
pid_t number_in(const std::string& said) { return static_cast<pid_t>(std::stol(said)); }

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
    children.start(script("exit 0"));
    children.wait_for(1, "anything", kLong);
    process = number_in([&] {
      std::string said;
      for (const auto& entry : std::filesystem::directory_iterator(children.folder().path())) {
        if (entry.path().filename() == "said-0") {
          std::FILE* const file = std::fopen(entry.path().c_str(), "r");
          char text[32] = {};
          said = std::fgets(text, sizeof text, file);
          std::fclose(file);
        }
      }
      return said;
    }());
    EXPECT_TRUE(lives(process));
  }
  EXPECT_FALSE(lives(process));
}

// As the whole of a test program is ended by who runs it.
TEST(ChildProcesses, DoNotOutliveAProcessThatIsKilled) {
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t tester = ::fork();
  if (tester == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ChildProcesses children;
    const std::size_t child = children.start(script("echo $$; exec sleep 600"));
    if (children.wait_for(child, "\n", kLong)) (void)::write(ends[1], "x", 1);
    ::kill(::getpid(), SIGKILL);
  }
  ::close(ends[1]);
  char word = 0;
  EXPECT_EQ(::read(ends[0], &word, 1), 1);
  ::waitpid(tester, nullptr, 0);
  ::close(ends[0]);
}
}  // namespace
}  // namespace headrace::testing
