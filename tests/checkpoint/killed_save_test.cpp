// SPDX-License-Identifier: Apache-2.0
// A save is killed at each of its calls that change a file or a folder, and at any time. So is one
// beside training. The calls of that one fail, too. Others fail as on file systems that lack them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <thread>

#include "checkpoint/training.hpp"

namespace headrace {
namespace {
namespace fs = std::filesystem;
using testing_checkpoints::error_of;
using testing_checkpoints::Training;

// Some of the calls come from threads of the save.
std::atomic<std::uint64_t> calls_made{0}, calls_to_live{~std::uint64_t{0}};
// The errno of every write to a file, or sync, of these checkpoints; 0: none.
std::atomic<int> write_error{0}, sync_error{0};
// As NFS does: a rename cannot refuse a name that is taken, and folders know no sync.
std::atomic<bool> renames_take_no_flags{false}, folders_have_no_sync{false};
// Of another program, which makes this folder, with a file, when a save is about to give it a name.
std::atomic<bool> name_is_taken{false};
// Of another rank, which leaves its note just before rank 0 removes the folder, so many times.
std::atomic<int> late_notes{0};

void count_call() {
  if (calls_made++ == calls_to_live) ::raise(SIGKILL);
}

bool is_of_a_checkpoint(int fd) {
  std::error_code ignored;
  const std::string path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored);
  return path.find(".tmp/") != std::string::npos;
}

bool is_folder_without_sync(int fd) {
  struct stat status {};
  return folders_have_no_sync && ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
}

void take_name(const char* name) {
  if (!name_is_taken.exchange(false)) return;
  std::filesystem::create_directory(name);
  std::ofstream(std::string(name) + "/mine") << "of another program";
}

void leave_note(const std::string& folder) {
  if (!folder.ends_with(".tmp") || late_notes <= 0) return;
  --late_notes;
  std::ofstream(folder + "/failed.1") << "why";
}

bool fails(int fd, int error) {
  if (error == 0 || !is_of_a_checkpoint(fd)) return false;
  errno = error;
  return true;
}
}  // namespace
}  // namespace headrace

// In the place of the C library's, of which the save makes its changes.
extern "C" {
ssize_t pwrite(int fd, const void* data, std::size_t size, off_t at) {
  headrace::count_call();
  if (headrace::fails(fd, headrace::write_error)) return -1;
  return ::syscall(SYS_pwrite64, fd, data, size, at);
}
int fsync(int fd) {
  headrace::count_call();
  if (headrace::fails(fd, headrace::sync_error)) return -1;
  if (headrace::is_folder_without_sync(fd)) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int fallocate(int fd, int mode, off_t at, off_t size) {
  headrace::count_call();
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, at, size));
}
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  headrace::count_call();
  if (flags != 0 && headrace::renames_take_no_flags) {
    headrace::take_name(to);
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, flags));
}
int unlinkat(int at, const char* name, int flags) noexcept {
  headrace::count_call();
  if ((flags & AT_REMOVEDIR) != 0) headrace::leave_note(name);
  return static_cast<int>(::syscall(SYS_unlinkat, at, name, flags));
}
int rename(const char* from, const char* to) noexcept {
  headrace::count_call();
  return static_cast<int>(::syscall(SYS_rename, from, to));
}
}

namespace headrace {
namespace {
// The legs with a sanitizer are slow: they take some of the calls.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kEvery = 20;
#else
constexpr std::uint64_t kEvery = 1;
#endif

enum class Way { kAtOnce, kBesideTraining };

// The store lies in `drive`, which the parent removes: a killed child leaves it.
void continue_durable(Training& run, const std::string& drive,
                      std::uint64_t rate = std::uint64_t{1} << 40) {
  Settings settings = testing_checkpoints::settings_of({.on_nvme = true}, drive);
  settings.durable_every = 1;
  settings.store = "run";
  settings.background_save_bytes_per_second = rate;
  run.begin(settings);
}
void make_durable(Training& run, const std::string& drive,
                  std::uint64_t rate = std::uint64_t{1} << 40) {
  fs::remove_all(drive);
  fs::create_directories(drive);
  continue_durable(run, drive, rate);
}

void save(Training& run, const std::string& folder, std::uint64_t file_bytes, Way way) {
  const SaveOptions options{.file_bytes = file_bytes, .latest = true};
  if (way == Way::kAtOnce) return save_checkpoint(run.engine(), folder, options);
  const BackgroundSave save = save_checkpoint_in_background(run.engine(), folder, options);
  run.train(1);
  save.wait();
}

// A child that saves the state after a step, and is killed by `kill` or by its own calls. The
// parent has no engine then, so that it forks from one thread. Returns the number of its calls, or
// 0 if it was killed.
std::uint64_t save_in_child(
    const std::string& folder, std::uint64_t file_bytes, std::uint64_t to_live,
    const std::function<void(pid_t)>& kill = [](pid_t) {}, Way way = Way::kAtOnce) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Training run({.width = 100});
    if (way == Way::kBesideTraining) make_durable(run, folder + ".drive");
    run.train(1);
    calls_made = 0;
    calls_to_live = to_live;
    (void)!::write(pipe[1], "x", 1);
    save(run, folder, file_bytes, way);
    const std::uint64_t made = calls_made;
    (void)!::write(pipe[1], &made, sizeof made);
    run.engine().close();  // else ThreadSanitizer misses who joins the thread of the save
    ::_exit(0);
  }
  ::close(pipe[1]);
  char ready = 0;
  EXPECT_EQ(::read(pipe[0], &ready, 1), 1);
  kill(child);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
              (WIFEXITED(status) && WEXITSTATUS(status) == 0))
      << status;
  std::uint64_t calls = 0;
  const bool ended = ::read(pipe[0], &calls, sizeof calls) == sizeof calls;
  ::close(pipe[0]);
  return ended && WIFEXITED(status) ? calls : 0;
}

class KilledSave : public ::testing::Test {
 protected:
  void SetUp() override {
    Training run({.width = 100});
    save_checkpoint(run.engine(), first_, {.latest = true});
    before_ = run.hashes();
    run.train(1);
    after_ = run.hashes();
    run.train(1);
    one_step_on_ = run.hashes();
  }
  // The store has the step that was being saved, or a later one, and goes on from it. That
  // step is committed before the save makes its folder.
  void expect_the_store_to_continue(bool committed) {
    Training run({.width = 100});
    continue_durable(run, second_ + ".drive");
    const auto resumed = run.engine().resumed();
    const std::uint64_t step = resumed ? resumed->step : 0;
    EXPECT_LE(step, 2u);
    EXPECT_GE(step, committed ? 1u : 0u);
    run.train(static_cast<int>(2 - step));
    EXPECT_EQ(run.hashes(), one_step_on_);
  }
  // The checkpoint before or the new one is the latest, whole; the new one is whole or absent.
  void expect_one_or_the_other() {
    Training run({.width = 100});
    EXPECT_EQ(error_of([&] { load_checkpoint(run.engine(), directory_.string()); }), "no error");
    EXPECT_TRUE(run.hashes() == before_ || run.hashes() == after_);
    load_checkpoint(run.engine(), first_);
    EXPECT_EQ(run.hashes(), before_);
    if (!fs::exists(second_)) return;
    EXPECT_EQ(error_of([&] { load_checkpoint(run.engine(), second_); }), "no error");
    EXPECT_EQ(run.hashes(), after_);
    fs::remove_all(second_);
    std::ofstream(directory_.string() + "/latest") << "1\n";
  }
  void expect_next_save_works() {
    Training run({.width = 100});
    save_checkpoint(run.engine(), second_);
    EXPECT_FALSE(fs::exists(second_ + ".tmp"));
  }
  const testing::TemporaryDirectory directory_;
  const std::string first_ = directory_.string() + "/1", second_ = directory_.string() + "/2";
  std::string before_, after_, one_step_on_;
};

constexpr std::uint64_t kNever = ~std::uint64_t{0};

TEST_F(KilledSave, LeavesTheOneBeforeAtEachOfItsCalls) {
  std::uint64_t points = 0;
  for (const std::uint64_t file_bytes : {std::uint64_t{3000}, std::uint64_t{1}}) {
    const std::uint64_t calls = save_in_child(second_, file_bytes, kNever);
    ASSERT_GT(calls, 0u);
    expect_one_or_the_other();
    for (std::uint64_t k = 0; k<calls; k += k + kEvery + 10> calls ? 1 : kEvery) {
      SCOPED_TRACE("killed at call " + std::to_string(k) + " of " + std::to_string(calls));
      EXPECT_EQ(save_in_child(second_, file_bytes, k), 0u);
      expect_one_or_the_other();
      fs::remove_all(second_ + ".tmp");  // the calls of the next are its own alone
      ++points;
    }
  }
  std::cout << points << " points\n";
  EXPECT_GE(points, kEvery == 1 ? 200u : 20u);
  expect_next_save_works();
}

// Later and later, until a save is whole before its kill.
TEST_F(KilledSave, LeavesTheOneBeforeAtAnyTime) {
  int killed = 0;
  for (int microseconds = 0; microseconds < 2'000'000; microseconds = microseconds * 3 / 2 + 200) {
    SCOPED_TRACE(microseconds);
    const bool ended = save_in_child(second_, 3000, kNever, [&](pid_t child) {
                         std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
                         ::kill(child, SIGKILL);
                       }) != 0;
    expect_one_or_the_other();
    if (ended && killed > 0) break;  // on a busy machine the first may be whole, too
    killed += ended ? 0 : 1;
    fs::remove_all(second_);
  }
  EXPECT_GT(killed, 0);
  expect_next_save_works();
}

// A save removes the folder of a dead one, and is killed at each of the removals.
TEST_F(KilledSave, IsRemovedByOneThatIsKilled) {
  const std::uint64_t calls = save_in_child(second_, 1, kNever);
  fs::remove_all(second_);
  for (std::uint64_t k = 0;; k += kEvery == 1 ? 1 : 6) {
    SCOPED_TRACE("killed at call " + std::to_string(k));
    EXPECT_EQ(save_in_child(second_, 1, calls / 2), 0u);
    const auto left = std::distance(fs::directory_iterator(second_ + ".tmp"), {});
    ASSERT_GT(left, 3);
    if (static_cast<long>(k) > left + 1) break;
    EXPECT_EQ(save_in_child(second_, 1, k), 0u);
    expect_next_save_works();
    fs::remove_all(second_);
  }
}

// The number of its calls differs from run to run: what the store and the steps do is among them.
TEST_F(KilledSave, BesideTrainingLeavesTheOneBefore) {
  std::uint64_t points = 0;
  for (const std::uint64_t file_bytes : {std::uint64_t{3000}, std::uint64_t{1}}) {
    for (std::uint64_t k = 0;; k += kEvery) {
      SCOPED_TRACE("killed at call " + std::to_string(k));
      const bool ended = save_in_child(
                             second_, file_bytes, k, [](pid_t) {}, Way::kBesideTraining) != 0;
      const bool saving = fs::exists(second_) || fs::exists(second_ + ".tmp");
      expect_one_or_the_other();
      expect_the_store_to_continue(saving);
      fs::remove_all(second_ + ".tmp");  // the next kill may come before there is another
      if (ended) break;
      ++points;
    }
  }
  std::cout << points << " points\n";
  EXPECT_GE(points, kEvery == 1 ? 200u : 10u);
  expect_next_save_works();
}

// ---- file systems that lack a call ----

class SaveWithoutFlags : public KilledSave {
 protected:
  void SetUp() override {
    KilledSave::SetUp();
    renames_take_no_flags = folders_have_no_sync = true;
  }
  void TearDown() override { renames_take_no_flags = folders_have_no_sync = false; }
};

TEST_F(SaveWithoutFlags, IsWholeUnderItsName) {
  Training run({.width = 100});
  run.train(1);
  save_checkpoint(run.engine(), second_, {.latest = true});
  EXPECT_FALSE(fs::exists(second_ + ".tmp"));
  ASSERT_TRUE(fs::exists(second_));
  expect_one_or_the_other();
}

TEST_F(SaveWithoutFlags, LeavesAFolderThatTookItsName) {
  Training run({.width = 100});
  name_is_taken = true;
  const std::string error = error_of([&] { save_checkpoint(run.engine(), second_); });
  EXPECT_FALSE(name_is_taken);
  EXPECT_NE(error.find("cannot rename " + second_ + ".tmp to " + second_), std::string::npos)
      << error;
  EXPECT_TRUE(fs::exists(second_ + "/mine"));
  EXPECT_FALSE(fs::exists(second_ + "/manifest.json"));
  EXPECT_FALSE(fs::exists(second_ + ".tmp"));
}

// ---- a note that comes late ----

class FailedSave : public KilledSave {
 protected:
  void fail_with_late_notes(int notes) {
    Training run({.width = 100});
    write_error = EIO;
    late_notes = notes;
    EXPECT_NE(error_of([&] { save_checkpoint(run.engine(), second_); }), "no error");
    write_error = 0;
  }
  void TearDown() override { write_error = late_notes = 0; }
};

TEST_F(FailedSave, RemovesANoteThatCameBeforeItsFolderWent) {
  fail_with_late_notes(1);
  EXPECT_EQ(late_notes, 0);
  EXPECT_FALSE(fs::exists(second_ + ".tmp"));
}

TEST_F(FailedSave, LeavesAFolderWithNotesToTheNext) {
  fail_with_late_notes(1000);
  EXPECT_TRUE(fs::exists(second_ + ".tmp/failed.1"));
  late_notes = 0;
  expect_next_save_works();
}

class FailingBackgroundSave : public KilledSave {
 protected:
  void TearDown() override { write_error = sync_error = 0; }
  // Training goes on, with commits, and the next save is whole.
  void expect_the_error(std::atomic<int>& fails, int error, const std::string& code) {
    Training run({.width = 100});
    make_durable(run, second_ + ".drive", /*rate=*/100'000);  // most is written after the call
    run.train(1);
    const BackgroundSave save = save_checkpoint_in_background(run.engine(), second_);
    fails = error;
    run.train(2);
    const std::string text = error_of([&] { save.wait(); });
    EXPECT_TRUE(text.starts_with(code + " save_checkpoint_in_background: ")) << text;
    EXPECT_FALSE(fs::exists(second_));
    EXPECT_FALSE(fs::exists(second_ + ".tmp"));
    fails = 0;
    run.train(2);
    EXPECT_GE(run.engine().durable_step(), 4u);
    save_checkpoint_in_background(run.engine(), second_).wait();
    const std::string hashes = run.hashes();
    Training again({.width = 100});
    load_checkpoint(again.engine(), second_);
    EXPECT_EQ(again.hashes(), hashes);
  }
};

TEST_F(FailingBackgroundSave, TellsOfAFullDisk) {
  expect_the_error(write_error, ENOSPC, "kNoSpace");
}

TEST_F(FailingBackgroundSave, TellsOfAFailedWrite) { expect_the_error(write_error, EIO, "kIo"); }

TEST_F(FailingBackgroundSave, TellsOfAFailedSync) { expect_the_error(sync_error, EIO, "kIo"); }
}  // namespace
}  // namespace headrace
