// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <set>

#include "drive_bench.hpp"
#include "headrace/error.hpp"
#include "limits.hpp"
#include "swap/dead_runs.hpp"
#include "swap/swap_file.hpp"

namespace headrace::swap::test {
namespace {
namespace fs = std::filesystem;

class RunDirectoryTest : public testing::Test {
 protected:
  PathProbe probe() const {
    PathProbe probe;
    probe.path = scratch_.path();
    probe.direct = true;
    return probe;
  }
  std::unique_ptr<RunDirectory> start() {
    return std::make_unique<RunDirectory>(probe(), make_run_id(), log_.sink());
  }
  std::string user_path() const { return scratch_ / ("headrace-" + std::to_string(::geteuid())); }

  // A run in a child that is killed while it lives; returns its directory.
  std::string killed_run(std::uint64_t swap_bytes) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto run = start();
      const SwapFile file(*run, {.path = scratch_.path()}, "rank0.0.swap", swap_bytes);
      const std::string path = run->path();
      [[maybe_unused]] const ssize_t written = ::write(ready[1], path.data(), path.size());
      while (true) ::pause();
    }
    char path[4096];
    const ssize_t got = ::read(ready[0], path, sizeof path);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    return std::string(path, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }

  ScratchDirectory scratch_;
  RememberedLog log_;
};

unsigned mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST_F(RunDirectoryTest, IsPrivateLockedAndDescribed) {
  const auto run = start();
  EXPECT_EQ(fs::path(run->path()).parent_path(), user_path());
  EXPECT_EQ(mode_of(user_path()), 0700u);
  EXPECT_EQ(mode_of(run->path()), 0700u);
  EXPECT_EQ(mode_of(run->path() + "/lock"), 0600u);
  EXPECT_EQ(mode_of(run->path() + "/manifest.json"), 0600u);
  const int lock = ::open((run->path() + "/lock").c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(::flock(lock, LOCK_EX | LOCK_NB), -1);
  EXPECT_EQ(errno, EWOULDBLOCK);
  ::close(lock);
  std::ifstream manifest(run->path() + "/manifest.json");
  const std::string text((std::istreambuf_iterator<char>(manifest)), {});
  for (const char* key : {"\"format\": \"headrace-run\"", "\"version\": 1", "\"uid\"", "\"pid\"",
                          "\"host\"", "\"started\""}) {
    EXPECT_NE(text.find(key), std::string::npos) << key << " in " << text;
  }
  EXPECT_TRUE(log_.at(LogLevel::kInfo).empty());
}

TEST_F(RunDirectoryTest, LeavesNothingBehind) {
  start().reset();
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

TEST_F(RunDirectoryTest, TwoLiveRunsShareAPathAndLeaveEachOtherAlone) {
  auto first = start();
  auto second = start();
  EXPECT_TRUE(log_.at(LogLevel::kInfo).empty());
  EXPECT_NE(first->path(), second->path());
  EXPECT_TRUE(fs::exists(first->path() + "/manifest.json"));
  first.reset();
  EXPECT_TRUE(fs::exists(second->path() + "/manifest.json"));
  second.reset();
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

TEST_F(RunDirectoryTest, ReclaimsWhatAKilledRunLeftAndSaysHowMuch) {
  const std::string dead = killed_run(1 << 20);
  ASSERT_TRUE(fs::exists(dead + "/rank0.0.swap"));
  const auto live = start();
  EXPECT_FALSE(fs::exists(dead));
  const auto infos = log_.at(LogLevel::kInfo);
  ASSERT_EQ(infos.size(), 1u);
  EXPECT_TRUE(infos[0].starts_with("removed what 1 dead run left in ")) << infos[0];
  EXPECT_NE(infos[0].find("MiB"), std::string::npos) << infos[0];
}

TEST_F(RunDirectoryTest, ReclaimsTheDirectoryOfARunsSecondDriveToo) {
  const std::string first = killed_run(4096), second = first + "-1";
  fs::rename(first, second);
  std::ifstream in(second + "/manifest.json");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string id = fs::path(first).filename();
  text.replace(text.find(id), id.size(), id + "-1");
  std::ofstream(second + "/manifest.json") << text;
  start().reset();
  EXPECT_FALSE(fs::exists(second));
}

TEST_F(RunDirectoryTest, ReclaimsTheDeadWhileTheLiveRunOn) {
  const auto live = start();
  const std::string dead = killed_run(4096);
  const auto next = start();
  const auto infos = log_.at(LogLevel::kInfo);
  ASSERT_EQ(infos.size(), 1u);
  EXPECT_TRUE(infos[0].starts_with("removed what 1 dead run left in ")) << infos[0];
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(live->path() + "/manifest.json"));
}

TEST_F(RunDirectoryTest, NamesADirectoryInADeadRunThatItLeavesThereAtEveryStart) {
  const std::string dead = killed_run(4096);
  fs::create_directory(dead + "/notes");
  const std::string kept = user_path() + "/.old-" + fs::path(dead).filename().string() + "/notes";
  for (std::size_t start_number = 1; start_number <= 2; ++start_number) {
    start().reset();
    EXPECT_TRUE(fs::exists(kept));
    EXPECT_FALSE(fs::exists(fs::path(kept).parent_path() / "rank0.0.swap"));
    const auto warnings = log_.at(LogLevel::kWarning);
    ASSERT_EQ(warnings.size(), start_number);
    EXPECT_NE(warnings.back().find("could not remove " + kept + ": EISDIR"), std::string::npos)
        << warnings.back();
    EXPECT_TRUE(warnings.back().ends_with("remove it by hand")) << warnings.back();
  }
  fs::remove(kept);
  start().reset();
  EXPECT_EQ(log_.at(LogLevel::kWarning).size(), 2u);
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

// A listing that fails is no empty directory: what stays is named, and goes at the next start.
TEST_F(RunDirectoryTest, SaysOnceWhatItCouldNotListAndLeavesItToTheNextStart) {
  const std::string dead = killed_run(4096);
  const int status = in_child([&] {
    if (!forbid(SYS_getdents64, EIO)) return 77;
    auto run = start();
    const std::string path = run->path();
    EXPECT_EQ(log_.at(LogLevel::kWarning).size(), 1u);
    EXPECT_TRUE(
        log_.at(LogLevel::kWarning)[0].starts_with("could not list " + user_path() + ": EIO"))
        << log_.at(LogLevel::kWarning)[0];
    run.reset();
    EXPECT_EQ(log_.at(LogLevel::kWarning).size(), 2u);
    EXPECT_NE(log_.at(LogLevel::kWarning).back().find(fs::path(path).filename().string() + ": EIO"),
              std::string::npos)
        << log_.at(LogLevel::kWarning).back();
    return HasFailure() ? 1 : 0;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(dead));
  start().reset();
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

TEST_F(RunDirectoryTest, ReclaimsOnAPathWhereNothingIsStoredAndMakesNothingThere) {
  reclaim_dead_runs_at(scratch_.path(), log_.sink());
  reclaim_dead_runs_at(scratch_ / "nothing", log_.sink());
  EXPECT_TRUE(tree(scratch_.path()).empty());
  auto live = start();
  const std::string dead = killed_run(1 << 20);
  reclaim_dead_runs_at(scratch_.path(), log_.sink());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(live->path() + "/manifest.json"));
  ASSERT_EQ(log_.at(LogLevel::kInfo).size(), 1u);
  EXPECT_NE(log_.at(LogLevel::kInfo)[0].find("1 dead run"), std::string::npos);
  live.reset();
  killed_run(4096);
  reclaim_dead_runs_at(scratch_.path(), log_.sink());
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

TEST_F(RunDirectoryTest, ReclaimsARunThatDiedHalfWayThroughItsStartOrItsEnd) {
  start().reset();
  const std::string id = make_run_id();
  fs::create_directories(user_path() + "/.new-" + id);
  std::ofstream(user_path() + "/.new-" + id + "/lock") << "";
  fs::create_directories(user_path() + "/.old-" + id);
  std::ofstream(user_path() + "/.old-" + id + "/rank0.0.swap") << "left";
  const auto run = start();
  EXPECT_FALSE(fs::exists(user_path() + "/.new-" + id));
  EXPECT_FALSE(fs::exists(user_path() + "/.old-" + id));
}

TEST_F(RunDirectoryTest, TouchesNothingThatItDidNotMake) {
  fs::create_directory(user_path());
  const std::vector<std::string> foreign = {"notes", "0123456789abcdef0123456789abcdef",
                                            ".new-0123456789abcdef0123456789abcdef", ".old-x"};
  for (const std::string& name : foreign) {
    fs::create_directory(user_path() + "/" + name);
    std::ofstream(user_path() + "/" + name + "/data") << "mine";
    std::ofstream(user_path() + "/" + name + "/lock") << "";
  }
  const std::string other = user_path() + "/fedcba98765432100123456789abcdef";
  fs::create_directory(other);
  std::ofstream(other + "/lock") << "";
  std::ofstream(other + "/data") << "a run of a later version";
  std::ofstream(other + "/manifest.json")
      << R"({"format":"headrace-run","version":2,"run":"fedcba98765432100123456789abcdef","uid":)"
      << ::geteuid() << "}";
  start().reset();
  for (const std::string& name : foreign)
    EXPECT_TRUE(fs::exists(user_path() + "/" + name + "/data")) << name;
  EXPECT_TRUE(fs::exists(other + "/data"));
}

// Whatever a store's name looks like, and whatever lies in it.
TEST_F(RunDirectoryTest, LeavesStoresAndTheirDirectoryAlone) {
  const std::string dead = killed_run(4096), id = fs::path(dead).filename();
  const std::vector<std::string> stores = {"store-run7", "store-" + id, "store-" + id + "-1",
                                           "store-.old-" + id, "store-.new-" + id};
  for (const std::string& store : stores) fs::copy(dead, user_path() + "/" + store);
  fs::remove(user_path() + "/store-run7/rank0.0.swap");  // just what a start makes
  start().reset();
  reclaim_dead_runs_at(scratch_.path(), log_.sink());
  EXPECT_FALSE(fs::exists(dead));
  for (const std::string& store : stores)
    EXPECT_TRUE(fs::exists(user_path() + "/" + store + "/manifest.json")) << store;
}

TEST_F(RunDirectoryTest, LeavesTheDirectoriesOfOtherUsersAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make another user's directory";
  const std::string dead = killed_run(4096);
  ASSERT_EQ(::chown(dead.c_str(), 65534, 65534), 0);
  const auto run = start();
  EXPECT_TRUE(log_.at(LogLevel::kInfo).empty());
  EXPECT_TRUE(fs::exists(dead + "/rank0.0.swap"));
}

TEST_F(RunDirectoryTest, RefusesAUsersDirectoryThatBelongsToSomebodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make another user's directory";
  fs::create_directory(user_path());
  ASSERT_EQ(::chown(user_path().c_str(), 65534, 65534), 0);
  EXPECT_THROW(start(), Error);
}

TEST_F(RunDirectoryTest, DoesNotFollowALinkPlantedInItsPlace) {
  fs::create_directory(scratch_ / "elsewhere");
  fs::create_directory_symlink(scratch_ / "elsewhere", user_path());
  EXPECT_THROW(start(), Error);
  EXPECT_TRUE(tree(scratch_ / "elsewhere").empty());
}

TEST_F(RunDirectoryTest, MakesItsDirectoryPrivateAgain) {
  fs::create_directory(user_path());
  ::chmod(user_path().c_str(), 0777);
  const auto run = start();
  EXPECT_EQ(mode_of(user_path()), 0700u);
}

TEST_F(RunDirectoryTest, AForkedChildRemovesNothingAndHoldsNoLock) {
  auto run = start();
  const SwapFile file(*run, {.path = scratch_.path()}, "rank0.0.swap", 4096);
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  // One child unwinds as if it had left the scope; one lives on beyond its parent's run.
  const int unwound = in_child([&] {
    run.reset();
    return 0;
  });
  EXPECT_EQ(unwound, 0);
  EXPECT_TRUE(fs::exists(run->path() + "/manifest.json"));
  EXPECT_TRUE(fs::exists(file.path()));
  const int lock = ::open((run->path() + "/lock").c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(::flock(lock, LOCK_EX | LOCK_NB), -1) << "still the parent's";

  int born[2];
  ASSERT_EQ(::pipe(born), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(hold[1]);
    char byte = 0;
    [[maybe_unused]] const ssize_t put = ::write(born[1], &byte, 1);
    [[maybe_unused]] const ssize_t got = ::read(hold[0], &byte, 1);
    ::_exit(0);
  }
  char byte = 1;
  ASSERT_EQ(::read(born[0], &byte, 1), 1);  // its fork handlers have run
  const std::string path = run->path();
  run.reset();  // the lock file is gone with the directory, but its open file is the one we have
  EXPECT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0) << "the living child does not keep it";
  ::close(lock);
  ::close(hold[0]);
  ::close(hold[1]);
  ::close(born[0]);
  ::close(born[1]);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(RunDirectoryTest, ASwapFileInAForkedChildStays) {
  const auto run = start();
  auto file =
      std::make_unique<SwapFile>(*run, PathProbe{.path = scratch_.path()}, "rank0.0.swap", 4096);
  EXPECT_EQ(in_child([&] {
              file.reset();
              return 0;
            }),
            0);
  EXPECT_TRUE(fs::exists(file->path()));
}

TEST_F(RunDirectoryTest, ManyStartersAtOnceAllGetARunOfTheirOwn) {
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      for (int round = 0; round < 15; ++round) {
        const auto run = start();
        if (!fs::exists(run->path() + "/manifest.json")) throw std::runtime_error("run removed");
        if (!log_.at(LogLevel::kInfo).empty()) throw std::runtime_error("took a run for dead");
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(2);
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

TEST_F(RunDirectoryTest, RefusesWhereFilesCannotBeLockedAndLeavesNothing) {
  const int status = in_child([&] {
    if (!forbid(SYS_flock, ENOLCK)) return 77;
    try {
      start();
      return 1;
    } catch (const Error& error) {
      return error.code() == Code::kUnsupported && error.sys_errno() == ENOLCK ? 0 : 2;
    }
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

TEST_F(RunDirectoryTest, LeavesNothingAfterAFailedStart) {
  const auto run = start();
  const std::string id = fs::path(run->path()).filename();
  EXPECT_THROW(RunDirectory(probe(), id, log_.sink()), Error) << "the id is taken";
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(user_path()))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, std::set<std::string>{id});
  EXPECT_TRUE(fs::exists(run->path() + "/manifest.json"));
}

// With every number of descriptors to spare: a run, or an error that names the limit.
TEST_F(RunDirectoryTest, StartsOrRefusesWithFewDescriptorsAndLeavesNothing) {
  int refused = 0;
  for (std::size_t spare = 0; spare <= 12; ++spare) {
    {
      const FewDescriptors few(spare);
      try {
        start();
      } catch (const Error& error) {
        ++refused;
        EXPECT_EQ(error.sys_errno(), EMFILE) << error.what();
        EXPECT_NE(std::string(error.what()).find("ulimit -n"), std::string::npos) << error.what();
      }
    }
    ASSERT_TRUE(tree(scratch_.path()).empty()) << "with " << spare << " descriptors to spare";
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 12);
}

TEST_F(RunDirectoryTest, EndsWithoutADescriptorToSpare) {
  auto run = start();
  auto file = std::make_unique<SwapFile>(*run, probe(), "rank0.0.swap", 4096);
  {
    const FewDescriptors none(0);
    file.reset();
    run.reset();
  }
  EXPECT_TRUE(tree(scratch_.path()).empty());
  EXPECT_TRUE(log_.at(LogLevel::kWarning).empty());
}

TEST_F(RunDirectoryTest, EndsInPeaceWhenSomebodyHasRemovedItAndANewRunIsThere) {
  auto run = start();
  fs::remove_all(user_path());
  const auto next = start();
  run.reset();
  EXPECT_TRUE(fs::exists(next->path() + "/manifest.json"));
  EXPECT_TRUE(log_.at(LogLevel::kWarning).empty());
}

TEST_F(RunDirectoryTest, EndsWhereItsPathWasRenamedMeanwhile) {
  auto run = start();
  fs::rename(user_path(), scratch_ / "moved");
  run.reset();
  EXPECT_EQ(tree(scratch_.path()), std::vector<std::string>{"moved"}) << "no longer ours by name";
}

// As on a file system that the kernel has made read-only after errors.
TEST_F(RunDirectoryTest, SaysWhatItCouldNotRemove) {
  const int status = in_child([&] {
    auto run = start();
    const std::string path = run->path();
    if (!forbid(SYS_unlinkat, EROFS)) return 77;
    run.reset();
    const auto warnings = log_.at(LogLevel::kWarning);
    if (warnings.size() != 1) return 1;
    const std::string id = fs::path(path).filename();
    if (warnings[0].find(user_path() + "/.old-" + id) == std::string::npos) return 2;
    return warnings[0].find("EROFS") != std::string::npos ? 0 : 3;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

// The run's own names carry the path past PATH_MAX.
TEST_F(RunDirectoryTest, WorksBelowAPathAsLongAsTheyGet) {
  std::string deep = scratch_.path();
  while (deep.size() + 201 < PATH_MAX) deep += "/" + std::string(200, 'x');
  if (PATH_MAX - deep.size() > 24) deep += "/" + std::string(PATH_MAX - deep.size() - 12, 'y');
  fs::create_directories(deep);
  const PathProbe long_probe = probe_path(deep, {});
  auto run = std::make_unique<RunDirectory>(long_probe, make_run_id(), log_.sink());
  ASSERT_GT(run->path().size(), std::size_t{PATH_MAX});
  auto file = std::make_unique<SwapFile>(*run, long_probe, "rank0.0.swap", 4096);
  file.reset();
  run.reset();
  EXPECT_TRUE(fs::is_empty(deep));
}

TEST_F(RunDirectoryTest, WarnsOnceWithoutDirectIo) {
  PathProbe buffered = probe();
  buffered.direct = false;
  buffered.file_system = "zfs";
  const RunDirectory run(buffered, make_run_id(), log_.sink());
  const auto warnings = log_.at(LogLevel::kWarning);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("zfs"), std::string::npos);
  EXPECT_NE(warnings[0].find("O_DIRECT"), std::string::npos);
}

TEST_F(RunDirectoryTest, SaysOnceThatAPathIsOverTheNetworkOrThatAReservationMayNotHold) {
  PathProbe there = probe();
  there.direct = true;
  for (const char* name : {"nfs", "lustre", "9p"}) {
    there.file_system = name;
    const RunDirectory run(there, make_run_id(), log_.sink());
    EXPECT_NE(log_.at(LogLevel::kWarning).back().find(std::string(" is on ") + name),
              std::string::npos);
  }
  EXPECT_EQ(log_.at(LogLevel::kWarning).size(), 3u);
  for (const char* name : {"btrfs", "ext4"}) {
    there.file_system = name;
    const RunDirectory run(there, make_run_id(), log_.sink());
  }
  EXPECT_EQ(log_.at(LogLevel::kWarning).size(), 3u);
  const auto infos = log_.at(LogLevel::kInfo);
  ASSERT_EQ(infos.size(), 1u);
  EXPECT_NE(infos[0].find("btrfs"), std::string::npos);
}

TEST(RunId, IsThirtyTwoHexDigitsAndNeverTheSame) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(make_run_id());
  EXPECT_EQ(ids.size(), 100u);
  for (const std::string& id : ids) {
    EXPECT_EQ(id.size(), 32u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}
}  // namespace
}  // namespace headrace::swap::test
