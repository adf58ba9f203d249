// SPDX-License-Identifier: Apache-2.0
// files_test: what the file system refuses names the path, the cause and what follows.
#include "checkpoint/files.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"
#include "swap/limits.hpp"

namespace headrace::checkpoint::files_test {
namespace {
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(FilesOfASave, AreRemovedAndRenamedOrNamedInTheError) {
  const testing::TemporaryDirectory folder;
  const std::string here = folder.string() + "/here", gone = folder.string() + "/gone";
  write_file(here, {});
  remove_file(gone);
  const std::string removal = refusal_of([&] { remove_file(folder.string()); });
  EXPECT_NE(removal.find("cannot remove " + folder.string()), std::string::npos) << removal;
  EXPECT_NE(removal.find("no checkpoint was made"), std::string::npos) << removal;
  const std::string renaming = refusal_of([&] { rename_file(gone, here); });
  EXPECT_NE(renaming.find("cannot rename " + gone + " to " + here), std::string::npos) << renaming;
  EXPECT_TRUE(is_there(here));
  rename_file(here, gone);
  EXPECT_FALSE(is_there(here));
  remove_file(gone);
  EXPECT_FALSE(is_there(gone));
}

TEST(FilesOfASave, ThatCannotBeLookedForAreNotTakenForMissing) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/" + std::string(5000, 'x');
  const std::string refusal = refusal_of([&] { is_there(path); });
  EXPECT_NE(refusal.find("cannot look for "), std::string::npos) << refusal;
}
// Two saves find the folder of a dead one. The second waits for the lock of what the first removes.
TEST(NewFolders, AreNotTakenFromASaveThatHasJustReplacedThem) {
  namespace fs = std::filesystem;
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/a.tmp";
  fs::create_directory(path);
  std::ofstream(path + "/.unfinished");
  const int old = ::open(path.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(old, LOCK_EX), 0);
  std::string refusal;
  std::atomic<bool> refused{false};
  std::thread second([&] {
    refusal = refusal_of([&] { const NewFolder taken(folder.string() + "/a"); });
    refused = true;
  });
  const auto opened = [&] {  // by this thread and the second
    int count = 0;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
      count += fs::read_symlink(entry, gone) == path ? 1 : 0;
    return count;
  };
  while (opened() < 2 && !refused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fs::remove_all(path);
  fs::create_directory(path);
  std::ofstream(path + "/.unfinished");
  std::ofstream(path + "/model.safetensors") << "of the first";
  const int now = ::open(path.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(now, LOCK_EX), 0);
  ::close(old);
  second.join();
  EXPECT_NE(refusal.find("another save is writing " + path), std::string::npos) << refusal;
  EXPECT_TRUE(fs::exists(path + "/model.safetensors"));
  ::close(now);
}

// A dead save's folder that cannot be looked at: the error says so, and names no other save.
TEST(NewFolders, NameWhatKeepsThemFromADeadOne) {
  namespace fs = std::filesystem;
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/a.tmp";
  const auto refusal = [&](int spare) {
    const swap::test::FewDescriptors few(static_cast<std::size_t>(spare));
    return refusal_of([&] { const NewFolder taken(folder.string() + "/a"); });
  };
  fs::create_directory(path);
  std::ofstream(path + "/.unfinished");
  std::ofstream(path + "/thesis.txt") << "mine";
  const std::string not_opened = refusal(0), not_listed = refusal(1);
  EXPECT_NE(not_opened.find("cannot open " + path + ": EMFILE"), std::string::npos) << not_opened;
  EXPECT_NE(not_listed.find("cannot list " + path + ": EMFILE"), std::string::npos) << not_listed;
  EXPECT_TRUE(fs::exists(path + "/thesis.txt"));
  fs::remove_all(path);
  fs::create_directory_symlink(folder.string(), path);
  const std::string link = refusal(10);
  EXPECT_NE(link.find(path + " is no folder; nothing was removed"), std::string::npos) << link;
  EXPECT_TRUE(fs::is_symlink(path));
}

TEST(NewFolders, NameAListingThatFailsMidWayAndLocksThatAreNone) {
  namespace fs = std::filesystem;
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/a.tmp";
  fs::create_directory(path);
  std::ofstream(path + "/.unfinished");
  // In a child, whose exit code this is.
  const auto expect_refusal = [&](long call, int error, const std::string& text) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!swap::test::forbid(call, error)) ::_exit(77);
      const std::string refusal =
          refusal_of([&] { const NewFolder taken(folder.string() + "/a"); });
      EXPECT_NE(refusal.find(text), std::string::npos) << refusal;
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const int status = expect_refusal(SYS_getdents64, EIO, "cannot list " + path + ": EIO");
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(path + "/.unfinished"));
  EXPECT_EQ(expect_refusal(SYS_flock, ENOLCK, "cannot lock " + path + ": ENOLCK"), 0);
  EXPECT_TRUE(fs::exists(path + "/.unfinished"));
  fs::remove_all(path);
  EXPECT_EQ(expect_refusal(SYS_flock, ENOLCK, "cannot lock " + path + ": ENOLCK"), 0);
  EXPECT_FALSE(fs::exists(path)) << "nothing stays of what cannot be locked";
}

TEST(FilesOfACheckpoint, AreNotReadWhereTheyAreFarTooLarge) {
  const testing::TemporaryDirectory folder;
  const std::string latest = folder.string() + "/latest";
  std::ofstream(latest) << "a";
  std::filesystem::resize_file(latest, std::uintmax_t{1} << 40);  // sparse
  const std::string refusal = refusal_of([&] { folder_of(folder.string()); });
  EXPECT_NE(refusal.find(latest + " has 1 TiB, and no such file has more than 4 KiB"),
            std::string::npos)
      << refusal;
}
}  // namespace
}  // namespace headrace::checkpoint::files_test
