// SPDX-License-Identifier: Apache-2.0
#include "swap/store_file.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "async/task.hpp"
#include "drive_bench.hpp"
#include "headrace/error.hpp"
#include "limits.hpp"
#include "swap/store_remains.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::swap::test {
namespace {
namespace fs = std::filesystem;
using std::chrono::duration;
using std::chrono::steady_clock;
constexpr std::uint64_t kStoreFileSize = 64 * kPage;

// A process of this test's that waits to be killed once it has done its part; nobody outlives the
// test by more than half a minute.
class Sleeper {
 public:
  // `part` returns a number for this test: told().
  explicit Sleeper(const std::function<pid_t()>& part) {
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    process_ = ::fork();
    if (process_ == 0) sleep_after(part, pipe[1]);
    ::close(pipe[1]);
    if (::read(pipe[0], &told_, sizeof told_) != sizeof told_) told_ = 0;
    ::close(pipe[0]);
  }
  ~Sleeper() { kill(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t process() const { return process_; }
  pid_t told() const { return told_; }  // 0: it threw
  void kill() {
    if (process_ > 0) end(process_);
    process_ = 0;
  }
  static void end(pid_t process) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }

 private:
  static void sleep_after(const std::function<pid_t()>& part, int to) {
    ::alarm(30);
    try {
      const pid_t told = part();
      if (::write(to, &told, sizeof told) != sizeof told) ::_exit(3);
      ::close(to);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(2);
    }
    while (true) ::pause();
  }
  pid_t process_ = 0, told_ = 0;
};

class StoreFileTest : public testing::Test {
 protected:
  std::unique_ptr<StoreFile> create(std::uint32_t drive = 0,
                                    std::uint64_t size_bytes = kStoreFileSize,
                                    Existing existing = Existing::kReplace) {
    return StoreFile::create(probe_, {"run7", 0, drive}, size_bytes, existing, log_.sink());
  }
  std::unique_ptr<StoreFile> open(std::uint32_t drive = 0, StoreUse use = StoreUse::kWrite) {
    return StoreFile::open(probe_, {"run7", 0, drive}, use);
  }
  void make_store(std::uint32_t drive = 0) { create(drive)->publish(); }
  std::string user_path() const { return scratch_ / ("headrace-" + std::to_string(::geteuid())); }
  std::string directory() const { return user_path() + "/store-run7"; }
  std::string file() const { return directory() + "/rank0.0.store"; }
  std::string temporary() const { return directory() + "/.new-rank0.0.store"; }

  void expect_refused(const std::function<void()>& call, Code code, int sys_errno,
                      const std::vector<std::string>& parts) {
    try {
      call();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_EQ(error.sys_errno(), sys_errno) << error.what();
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << part << " in " << error.what();
      }
    }
  }
  void expect_not_opened(Code code, int sys_errno, const std::vector<std::string>& parts) {
    expect_refused([this] { open(); }, code, sys_errno, parts);
  }

  ScratchDirectory scratch_;
  RememberedLog log_;
  PathProbe probe_ = probe_path(scratch_.path(), {});
};

unsigned permissions_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST_F(StoreFileTest, IsNotReplacedByWhoExpectsNone) {
  make_store();
  struct stat before {};
  ASSERT_EQ(::stat(file().c_str(), &before), 0);
  expect_refused(
      [this] { create(0, kStoreFileSize, Existing::kRefuse); }, Code::kWrongState, 0,
      {file() + " was made by another engine since this one looked for it", "start again"});
  struct stat after {};
  ASSERT_EQ(::stat(file().c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_FALSE(fs::exists(temporary()));
}

TEST_F(StoreFileTest, IsMadeUnderATemporaryNameAndStaysOncePublished) {
  auto made = create();
  EXPECT_TRUE(fs::exists(temporary()));
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_TRUE(drives_in_store(probe_, "run7", 0).empty());
  struct stat status {};
  ASSERT_EQ(::fstat(made->fd(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(kStoreFileSize));
  EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, kStoreFileSize);
  Pages out(kPage), in(kPage);
  fill_pattern(out.span(), 5);
  ASSERT_EQ(::pwrite(made->fd(), out.data(), kPage, kStoreFileSize - kPage),
            static_cast<ssize_t>(kPage));
  made->publish();
  EXPECT_FALSE(fs::exists(temporary()));
  EXPECT_EQ(made->path(), file());
  made.reset();

  const auto opened = open();
  EXPECT_EQ(opened->path(), file());
  EXPECT_EQ(opened->size_bytes(), kStoreFileSize);
  ASSERT_EQ(::pread(opened->fd(), in.data(), kPage, kStoreFileSize - kPage),
            static_cast<ssize_t>(kPage));
  EXPECT_EQ(std::memcmp(out.data(), in.data(), kPage), 0);
}

TEST_F(StoreFileTest, IsPrivateAndOpenedAsADriveNeedsIt) {
  make_store();
  EXPECT_EQ(permissions_of(directory()), 0700u);
  EXPECT_EQ(permissions_of(file()), 0600u);
  ::chmod(directory().c_str(), 0777);
  ::chmod(file().c_str(), 0666);
  const auto opened = open();
  EXPECT_EQ(permissions_of(directory()), 0700u) << "private again";
  EXPECT_EQ(permissions_of(file()), 0600u);
  const int flags = ::fcntl(opened->fd(), F_GETFL);
  EXPECT_EQ((flags & O_DIRECT) != 0, probe_.direct);
  EXPECT_EQ(flags & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(opened->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(StoreFileTest, UnpublishedIsGoneWithWhatIsEmptyThen) {
  auto first = create(0), second = create(1);
  first.reset();
  EXPECT_FALSE(fs::exists(temporary()));
  EXPECT_TRUE(fs::exists(directory() + "/.new-rank0.1.store"));
  second.reset();
  EXPECT_TRUE(tree(scratch_.path()).empty());
  make_store(1);
  create(0).reset();
  EXPECT_EQ(drives_in_store(probe_, "run7", 0), std::vector<std::uint32_t>{1});
}

TEST_F(StoreFileTest, AForkedChildRemovesNothing) {
  auto made = create();
  EXPECT_EQ(in_child([&] {
              made.reset();
              return 0;
            }),
            0);
  EXPECT_TRUE(fs::exists(temporary()));
  made->publish();
  EXPECT_TRUE(fs::exists(file()));
}

TEST_F(StoreFileTest, MakersTakeAwayWhatAKilledOneLeft) {
  {
    const Sleeper maker([this] {
      create().release();
      return 1;
    });
    ASSERT_EQ(maker.told(), 1);
    expect_refused([this] { create(); }, Code::kWrongState, 0,
                   {temporary(), std::to_string(maker.process())});
    EXPECT_TRUE(fs::exists(temporary())) << "a live maker's";
  }
  EXPECT_TRUE(fs::exists(temporary()));
  create(0, 2 * kStoreFileSize)->publish();
  EXPECT_EQ(open()->size_bytes(), 2 * kStoreFileSize);
  EXPECT_EQ(tree(directory()), std::vector<std::string>{"rank0.0.store"});
}

TEST_F(StoreFileTest, AMadeFileReplacesAnOlderOneThatNobodyUses) {
  make_store();
  auto used = open();
  expect_refused([this] { create(); }, Code::kWrongState, 0, {file()});
  used.reset();
  auto made = create(0, 2 * kStoreFileSize);
  expect_not_opened(Code::kWrongState, 0, {file()});
  made.reset();
  EXPECT_EQ(open()->size_bytes(), kStoreFileSize) << "never published, so the older one is there";
  create(0, 2 * kStoreFileSize)->publish();
  EXPECT_EQ(open()->size_bytes(), 2 * kStoreFileSize);
}

TEST_F(StoreFileTest, WhoWaitedForAFileThatWasReplacedGetsTheNewOne) {
  make_store();
  auto made = create(0, 2 * kStoreFileSize);
  std::atomic<std::uint64_t> got{0};
  std::thread waiting([&] {
    const auto until = steady_clock::now() + std::chrono::seconds(30);
    while (got == 0 && steady_clock::now() < until) {
      try {
        got = open()->size_bytes();
      } catch (const Error&) {
        // The machine was busy for longer than it waits.
      }
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it waits for the old one's lock
  made->publish();
  made.reset();
  waiting.join();
  EXPECT_EQ(got, 2 * kStoreFileSize);
}

TEST_F(StoreFileTest, MakersAtOnceDoNotRemoveEachOthersDirectories) {
  std::vector<pid_t> children;
  for (std::uint32_t drive = 0; drive < 5; ++drive) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    ::alarm(60);
    try {
      for (int round = 0; round < 20; ++round) create(drive, kPage);
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

TEST_F(StoreFileTest, ASecondEngineOfThisProcessIsRefusedSoon) {
  make_store();
  const auto used = open();
  const auto began = steady_clock::now();
  expect_not_opened(Code::kWrongState, 0,
                    {file(), "another engine of this process", "headrace.store"});
  EXPECT_LT(duration<double>(steady_clock::now() - began).count(), 6);
}

TEST_F(StoreFileTest, AnotherProcessIsRefusedByItsNumberUntilItIsKilled) {
  make_store();
  Sleeper user([this] {
    open().release();
    return 1;
  });
  ASSERT_EQ(user.told(), 1);
  expect_not_opened(Code::kWrongState, 0,
                    {file(), "another process, " + std::to_string(user.process())});
  user.kill();
  EXPECT_EQ(open()->size_bytes(), kStoreFileSize);
}

// As writes do that a killed process has left in the kernel.
TEST_F(StoreFileTest, WaitsForWhatADeadProcessStillHolds) {
  make_store();
  constexpr auto kHeld = std::chrono::milliseconds(2500);
  std::atomic<pid_t> holder{0};
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  {
    const Sleeper user([&]() -> pid_t {
      const int fd = ::open(file().c_str(), O_RDWR | O_CLOEXEC);
      if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return 0;
      const pid_t child = ::fork();
      if (child != 0) return child;
      ::alarm(30);
      std::this_thread::sleep_for(kHeld);
      ::_exit(0);
    });
    holder = user.told();
    ASSERT_GT(holder, 0);
  }
  EXPECT_EQ(open()->size_bytes(), kStoreFileSize);
  Sleeper::end(holder);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

class StoreUnderADrive : public StoreFileTest, public testing::WithParamInterface<IoQueueKind> {
 protected:
  void SetUp() override {
    try {
      choose_io_queue(GetParam(), {.depth = 2});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    make_store();
  }
  // With a file and buffers registered, and after a write.
  std::unique_ptr<Drive> drive_over(const StoreFile& store) {
    auto drive = make_drive_thread(conductor_, {.path = store.path(),
                                                .fd = store.fd(),
                                                .buffers = {memory_.span()},
                                                .log = log_.sink(),
                                                .make_queue = [](const IoQueueOptions& options) {
                                                  return choose_io_queue(GetParam(), options);
                                                }});
    write_ = make_transfer(IoKind::kWrite, memory_.data(), kPage, 16 * kPage);
    drive->start(write_);
    conductor_.wait_for(1);
    if (write_.done_bytes != 16 * kPage) throw std::runtime_error("the write failed");
    return drive;
  }
  void expect_opened_at_once() {
    const auto began = steady_clock::now();
    EXPECT_EQ(open()->size_bytes(), kStoreFileSize);
    EXPECT_LT(duration<double>(steady_clock::now() - began).count(), 6);
  }

  Pages memory_{16 * kPage};
  CollectingConductor conductor_;
  Transfer write_;
};
INSTANTIATE_TEST_SUITE_P(Queues, StoreUnderADrive,
                         testing::Values(IoQueueKind::kUring, IoQueueKind::kAio,
                                         IoQueueKind::kThreads),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(StoreUnderADrive, AForkedChildKeepsNothingThatItsParentHasClosed) {
  auto store = open();
  auto drive = drive_over(*store);
  const Sleeper child([] { return 1; });  // a data loader's process
  ASSERT_EQ(child.told(), 1);
  drive.reset();
  store.reset();
  expect_opened_at_once();
}

TEST_P(StoreUnderADrive, AForkedChildKeepsNothingThatItsKilledParentHad) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Sleeper parent([this]() -> pid_t {
    const auto store = open().release();
    drive_over(*store).release();
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::alarm(30);
    while (true) ::pause();
  });
  parent.kill();
  ASSERT_GT(parent.told(), 0);
  EXPECT_EQ(::kill(parent.told(), 0), 0) << "it is to live on";
  expect_opened_at_once();
  Sleeper::end(parent.told());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(StoreFileTest, WhatIsMissingIsNamed) {
  expect_not_opened(Code::kNotFound, ENOENT, {directory(), "headrace.nvme_paths"});
  make_store(1);
  expect_not_opened(Code::kNotFound, ENOENT, {file(), "headrace.nvme_paths"});
  EXPECT_EQ(tree(directory()), std::vector<std::string>{"rank0.1.store"});
}

TEST_F(StoreFileTest, ATruncatedFileIsNamed) {
  make_store();
  ASSERT_EQ(::truncate(file().c_str(), 4095), 0);
  expect_not_opened(Code::kCorrupt, 0, {file(), "truncated", "4095", "from a copy"});
  ASSERT_EQ(::truncate(file().c_str(), 2 * kPage + 17), 0);
  EXPECT_EQ(open()->size_bytes(), 2 * kPage) << "whole pages; its header says what is missing";
}

TEST_F(StoreFileTest, WhatIsNoFileOfAStoreIsNamedAndStays) {
  make_store();
  fs::rename(file(), scratch_ / "elsewhere");
  fs::create_symlink(scratch_ / "elsewhere", file());
  expect_not_opened(Code::kIo, ELOOP, {file(), "move that away"});
  expect_refused([this] { create(); }, Code::kIo, ELOOP, {file()});
  fs::remove(file());
  fs::create_directory(file());
  expect_not_opened(Code::kIo, EISDIR, {file(), "move that away"});
  fs::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  expect_not_opened(Code::kIo, 0, {file(), "not a regular file"});
  expect_refused([this] { create(); }, Code::kIo, 0, {file(), "not a regular file"});
  EXPECT_EQ(tree(directory()), std::vector<std::string>{"rank0.0.store"});
}

TEST_F(StoreFileTest, AStoreBehindALinkIsRefused) {
  make_store();
  fs::rename(directory(), scratch_ / "elsewhere");
  fs::create_directory_symlink(scratch_ / "elsewhere", directory());
  expect_not_opened(Code::kIo, ENOTDIR, {directory(), "move that away"});
  expect_refused([this] { create(); }, Code::kIo, ENOTDIR, {directory()});
  expect_refused([this] { drives_in_store(probe_, "run7", 0); }, Code::kIo, ENOTDIR, {directory()});
  EXPECT_TRUE(stores_at(scratch_.path()).empty());
}

TEST_F(StoreFileTest, WhatBelongsToSomebodyElseIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make another user's file";
  make_store();
  ASSERT_EQ(::chown(file().c_str(), kNobody, kNobody), 0);
  expect_not_opened(Code::kIo, EPERM, {"another user owns " + file(), "run as its owner"});
  ASSERT_EQ(::chown(directory().c_str(), kNobody, kNobody), 0);
  expect_not_opened(Code::kIo, EPERM, {directory(), "run as its owner"});
  expect_refused([this] { create(); }, Code::kIo, EPERM, {directory()});
  expect_refused([this] { drives_in_store(probe_, "run7", 0); }, Code::kIo, EPERM, {directory()});
  ASSERT_EQ(::chown(user_path().c_str(), kNobody, kNobody), 0);
  expect_refused([this] { stores_at(scratch_.path()); }, Code::kIo, EPERM, {user_path()});
  EXPECT_TRUE(fs::exists(file()));
}

TEST_F(StoreFileTest, AReaderNeedsNoRightToWriteAndChangesNoPermissions) {
  ::chmod(scratch_.path().c_str(), 0777);
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 77;
    make_store();
    ::chmod(file().c_str(), 0444);
    ::chmod(directory().c_str(), 0555);
    expect_not_opened(Code::kIo, EACCES, {file(), "right to write"});
    const auto reader = open(0, StoreUse::kRead);
    EXPECT_EQ(reader->size_bytes(), kStoreFileSize);
    EXPECT_EQ(::fcntl(reader->fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
    EXPECT_EQ(permissions_of(file()), 0444u);
    ::chmod(file().c_str(), 0);
    expect_refused([this] { open(0, StoreUse::kRead); }, Code::kIo, EACCES, {"right to read"});
    ::chmod(directory().c_str(), 0700);
    return HasFailure() ? 1 : 0;
  });
  if (status == 77) GTEST_SKIP() << "this root cannot become an ordinary user";
  EXPECT_EQ(status, 0);
}

TEST_F(StoreFileTest, ReadersShareAFileAndKeepItsWriterOut) {
  make_store();
  auto first = open(0, StoreUse::kRead), second = open(0, StoreUse::kRead);
  first.reset();
  expect_not_opened(Code::kWrongState, 0, {file(), "is in use"});
  second.reset();
  const auto writer = open();
  expect_refused([this] { open(0, StoreUse::kRead); }, Code::kWrongState, 0, {file(), "is in use"});
}

TEST_F(StoreFileTest, AReadOnlyFileSystemIsNamed) {
  make_store();
  const char* const path = scratch_.path().c_str();
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0) return 77;
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
    if (::mount(path, path, nullptr, MS_BIND, nullptr) != 0) return 77;
    if (::mount(nullptr, path, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) return 77;
    expect_not_opened(Code::kIo, EROFS, {file(), "for writing"});
    expect_refused([this] { create(1); }, Code::kIo, EROFS, {"for writing"});
    EXPECT_EQ(open(0, StoreUse::kRead)->size_bytes(), kStoreFileSize) << "a reader needs no more";
    return HasFailure() ? 1 : 0;
  });
  if (status == 77) GTEST_SKIP() << "needs root, to mount a directory read-only";
  EXPECT_EQ(status, 0);
}

TEST_F(StoreFileTest, RefusesWhereFilesCannotBeLockedAndLeavesNothing) {
  const auto refused_by = [&](const std::function<void()>& call) {
    return in_child([&] {
      if (!forbid(SYS_flock, ENOLCK)) return 77;
      expect_refused(call, Code::kUnsupported, ENOLCK, {"local file system"});
      return HasFailure() ? 1 : 0;
    });
  };
  const int status = refused_by([this] { create(); });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(tree(scratch_.path()).empty());
  make_store();
  EXPECT_EQ(refused_by([this] { open(); }), 0);
}

// A store that cannot be listed is not one without files, nor none.
TEST_F(StoreFileTest, WhatCannotBeListedIsRefused) {
  make_store();
  const int status = in_child([&] {
    if (!forbid(SYS_getdents64, EIO)) return 77;
    const auto expect_unlisted = [&](const std::function<void()>& call, const std::string& path) {
      expect_refused(call, Code::kIo, EIO, {"could not list " + path + ": EIO", "dmesg"});
    };
    expect_unlisted([this] { drives_in_store(probe_, "run7", 0); }, directory());
    expect_unlisted([this] { another_rank_in_store(probe_, "run7", 0); }, directory());
    expect_unlisted([this] { stores_at(scratch_.path()); }, user_path());
    return HasFailure() ? 1 : 0;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

TEST_F(StoreFileTest, AStoreThatCannotBeOpenedIsNotPassedOver) {
  ::chmod(scratch_.path().c_str(), 0777);
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 77;
    make_store();
    ::chmod(directory().c_str(), 0);
    EXPECT_EQ(stores_at(scratch_.path()), std::vector<std::string>{"run7"});
    expect_refused([this] { drives_in_store(probe_, "run7", 0); }, Code::kIo, EACCES,
                   {directory()});
    ::chmod(directory().c_str(), 0700);
    return HasFailure() ? 1 : 0;
  });
  if (status == 77) GTEST_SKIP() << "this root cannot become an ordinary user";
  EXPECT_EQ(status, 0);
}

TEST_F(StoreFileTest, TooLittleSpaceNamesWantedAndFreeBytesAndLeavesNothing) {
  const std::uint64_t wanted = std::uint64_t{1} << 43;
  expect_refused([&] { create(0, wanted); }, Code::kNoSpace, ENOSPC,
                 {file(), std::to_string(wanted), "are free", "nvme_path"});
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

TEST_F(StoreFileTest, RefusesWhatTheFileSizeLimitForbidsInsteadOfDyingByTheSignal) {
  make_store();
  EXPECT_EQ(in_child([&] {
              limit_file_size(kStoreFileSize / 2);
              expect_not_opened(Code::kNoSpace, EFBIG, {file(), "ulimit -f"});
              expect_refused([this] { create(1); }, Code::kNoSpace, EFBIG, {"ulimit -f"});
              EXPECT_EQ(open(0, StoreUse::kRead)->size_bytes(), kStoreFileSize);
              return HasFailure() ? 1 : 0;
            }),
            0);
  EXPECT_EQ(tree(directory()), std::vector<std::string>{"rank0.0.store"});
}

TEST_F(StoreFileTest, IsNotPublishedWhereSyncsFail) {
  const int status = in_child([&] {
    auto made = create();
    if (!forbid(SYS_fsync, EIO)) return 77;
    expect_refused([&] { made->publish(); }, Code::kIo, EIO, {"could not sync " + file()});
    return HasFailure() ? 1 : 0;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(tree(scratch_.path()).empty());
}

// With every number of descriptors to spare: a file, or an error that names the limit.
TEST_F(StoreFileTest, IsMadeOrRefusedWithFewDescriptorsAndLeavesNothing) {
  int refused = 0;
  for (std::size_t spare = 0; spare <= 10; ++spare) {
    {
      const FewDescriptors few(spare);
      try {
        create();
      } catch (const Error& error) {
        ++refused;
        EXPECT_EQ(error.sys_errno(), EMFILE) << error.what();
        EXPECT_NE(std::string(error.what()).find("ulimit -n"), std::string::npos) << error.what();
      }
    }
    ASSERT_TRUE(tree(scratch_.path()).empty()) << "with " << spare << " descriptors to spare";
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 10);
}

TEST_F(StoreFileTest, IsHeldWhateverItHoldsAndRemoved) {
  make_store();
  ASSERT_EQ(::truncate(file().c_str(), 7), 0);
  auto held = StoreFile::hold(probe_, {"run7", 0, 0});
  expect_refused(
      [this] {
        StoreFile::hold(probe_, {"run7", 0, 0});
      },
      Code::kWrongState, 0, {file(), "is in use"});
  held->remove();
  EXPECT_TRUE(tree(directory()).empty());
}

// What has a name and is not as it was made stays, and with it what is beside it.
TEST_F(StoreFileTest, RemainsThatMayHoldACommitStay) {
  make_store();  // without a header
  {
    const Sleeper maker([this] {
      create(1).release();
      return 1;
    });
    ASSERT_EQ(maker.told(), 1);
    expect_refused([this] { StoreRemains(std::span(&probe_, 1), "run7", RanksOfStore::one(0)); },
                   Code::kWrongState, 0, {".new-rank0.1.store", "is in use"});
  }
  EXPECT_EQ(files_of_store(probe_, "run7").size(), 2u);
  {
    StoreRemains remains(std::span(&probe_, 1), "run7", RanksOfStore::one(0));
    EXPECT_TRUE(remains.has_named());
    EXPECT_FALSE(remains.nothing_committed());
    expect_refused([&] { remains.remove(); }, Code::kWrongState, 0,
                   {"run7", "nothing was removed"});
  }
  EXPECT_EQ(files_of_store(probe_, "run7").size(), 2u);
  EXPECT_TRUE(StoreRemains(std::span(&probe_, 1), "run7", RanksOfStore::one(1)).empty())
      << "of another rank";
  ASSERT_EQ(::unlink(file().c_str()), 0);
  StoreRemains remains(std::span(&probe_, 1), "run7", {});
  EXPECT_GE(remains.bytes_on_paths().at(0), kStoreFileSize);
  remains.remove();
  EXPECT_TRUE(tree(directory()).empty());
}

TEST_F(StoreFileTest, DrivesAndStoresAreFoundByTheirNames) {
  EXPECT_TRUE(drives_in_store(probe_, "run7", 0).empty());
  EXPECT_TRUE(stores_at(scratch_.path()).empty());
  for (const std::uint32_t drive : {10u, 2u, 0u}) make_store(drive);
  for (const char* name :
       {".new-rank0.3.store", "rank0.04.store", "rank0..store", "rank0.5.store~", "rank0.-1.store",
        "rank00.6.store", "rank1.7.store", "rank0.8", "rank0.4294967296.store", "notes"}) {
    std::ofstream(directory() + "/" + name) << "";
  }
  EXPECT_EQ(drives_in_store(probe_, "run7", 0), (std::vector<std::uint32_t>{0, 2, 10}));
  EXPECT_EQ(drives_in_store(probe_, "run7", 1), std::vector<std::uint32_t>{7});
  EXPECT_TRUE(drives_in_store(probe_, "run", 0).empty());
  StoreFile::create(probe_, {"a", 0, 0}, kPage, Existing::kRefuse, log_.sink())->publish();
  std::ofstream(user_path() + "/store-file") << "";
  EXPECT_EQ(stores_at(scratch_.path()), (std::vector<std::string>{"a", "run7"}));
  expect_refused([&] { stores_at(scratch_ / "nothing"); }, Code::kNotFound, ENOENT, {"nothing"});
}
}  // namespace
}  // namespace headrace::swap::test
