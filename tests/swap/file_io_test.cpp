// SPDX-License-Identifier: Apache-2.0
// file_io_test: buffers reach files and come back, at any alignment, and what does not is named.
#include "headrace/file_io.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "base/unique_fd.hpp"
#include "swap/io_queue.hpp"
#include "swap/limits.hpp"
#include "swap/scratch.hpp"

namespace headrace {
namespace {
namespace fs = std::filesystem;
using swap::test::in_child;
using swap::test::ScratchDirectory;

// Memory that begins `shift` bytes after a page.
class Memory {
 public:
  Memory(std::size_t size_bytes, std::size_t shift)
      : all_(static_cast<std::byte*>(
            std::aligned_alloc(4096, (shift + size_bytes) / 4096 * 4096 + 4096))),
        bytes_(all_ + shift, size_bytes) {}
  ~Memory() { std::free(all_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }
  void fill(std::uint64_t seed) { swap::test::fill_pattern(bytes_, seed); }

 private:
  std::byte* all_;
  std::span<std::byte> bytes_;
};

bool equal(const Memory& a, const Memory& b) { return std::ranges::equal(a.bytes(), b.bytes()); }

bool has_direct(const ScratchDirectory& scratch) {
  return static_cast<bool>(base::UniqueFd(
      ::open((scratch / "probe").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600)));
}

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(Code::kOk, "");
}

void expect_words(const Error& error, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words)
    EXPECT_NE(std::string_view(error.what()).find(word), std::string_view::npos)
        << error.what() << "\nlacks " << word;
}

class FileIoTest : public ::testing::TestWithParam<IoQueueKind> {
 protected:
  FileIo* io() {
    if (!io_) {
      try {
        io_ = std::make_unique<FileIo>(
            FileIoOptions{.block_bytes = 64 * 1024, .queue_depth = 8, .queue = GetParam()});
      } catch (const Error& error) {
        skipped_ = error.what();
      }
    }
    return io_.get();
  }
  FileIoDone one() {
    const auto done = io_->wait(1);
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? FileIoDone{} : done[0];
  }
  std::string path(const std::string& name) const { return scratch_ / name; }

  ScratchDirectory scratch_;
  std::unique_ptr<FileIo> io_;
  std::string skipped_;
};

TEST_P(FileIoTest, BringsBytesBackAtAnyAlignment) {
  if (!io()) GTEST_SKIP() << skipped_;
  std::uint64_t cached = 0, seed = 1;
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 65536, 1048576 + 3}) {
    for (const std::uint64_t offset : {0, 100, 8192}) {
      for (const std::size_t shift : {0, 64}) {
        SCOPED_TRACE(std::to_string(size) + " bytes at " + std::to_string(offset) + ", memory +" +
                     std::to_string(shift));
        Memory written(size, shift), read(size, shift);
        written.fill(++seed);
        const std::string file = path("file" + std::to_string(seed));
        io()->write(file, offset, written.bytes(), seed);
        const FileIoDone wrote = one();
        ASSERT_FALSE(wrote.error) << wrote.error->what();
        EXPECT_EQ(wrote.tag, seed);
        EXPECT_EQ(wrote.done_bytes, size);
        EXPECT_EQ(fs::file_size(file), size == 0 ? 0 : offset + size);
        io()->read(file, offset, read.bytes(), 7);
        const FileIoDone back = one();
        ASSERT_FALSE(back.error) << back.error->what();
        EXPECT_TRUE(equal(written, read));
        cached += 2 * (offset % 4096 == 0 && shift == 0 ? size % 4096 : size);
      }
    }
  }
  const FileIoStats stats = io()->stats();
  EXPECT_EQ(stats.read_bytes, stats.written_bytes);
  if (has_direct(scratch_)) {
    EXPECT_EQ(stats.cached_bytes, cached);
  }
  EXPECT_EQ(io()->pending(), 0u);
}

TEST_P(FileIoTest, HasManyUnderWayInManyFiles) {
  if (!io()) GTEST_SKIP() << skipped_;
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Memory>> written, read;
  constexpr std::uint64_t kTransfers = 200;
  for (std::uint64_t i = 0; i < kTransfers; ++i) {
    const std::size_t size = random() % 200'000;
    written.push_back(std::make_unique<Memory>(size, random() % 2 * 64));
    read.push_back(std::make_unique<Memory>(size, random() % 2 * 64));
    written.back()->fill(seed + i);
    io()->write(path(std::to_string(i % 17)), i / 17 * 204'800, written.back()->bytes(), i);
  }
  std::map<std::uint64_t, int> seen;
  while (io()->pending() > 0) {
    for (const FileIoDone& done : io()->wait(3)) {
      EXPECT_FALSE(done.error) << done.error->what();
      ++seen[done.tag];
    }
  }
  EXPECT_EQ(seen.size(), kTransfers);
  for (std::uint64_t i = 0; i < kTransfers; ++i)
    io()->read(path(std::to_string(i % 17)), i / 17 * 204'800, read[i]->bytes(), i);
  EXPECT_EQ(io()->wait(kTransfers).size(), kTransfers);
  for (std::uint64_t i = 0; i < kTransfers; ++i) EXPECT_TRUE(equal(*written[i], *read[i])) << i;
}

TEST_P(FileIoTest, NamesAFileThatIsTooShort) {
  if (!io()) GTEST_SKIP() << skipped_;
  for (const std::size_t there : {5000, 8192, 0}) {
    Memory bytes(12288, 0);
    bytes.fill(1);
    const std::string file = path("short" + std::to_string(there));
    io()->write(file, 0, bytes.bytes().first(there), 1);
    EXPECT_FALSE(one().error);
    io()->read(file, 0, bytes.bytes(), 2);
    const FileIoDone done = one();
    ASSERT_TRUE(done.error);
    EXPECT_EQ(done.done_bytes, there);
    EXPECT_EQ(done.error->code(), Code::kIo);
    expect_words(*done.error, {file, "read of 12288 bytes at 0",
                               std::to_string(there) + " bytes were", "the file ends there"});
  }
}

TEST_P(FileIoTest, NamesWhatHasNoRoom) {
  if (!io()) GTEST_SKIP() << skipped_;
  Memory bytes(8192, 0);
  io()->write("/dev/full", 0, bytes.bytes(), 1);
  const FileIoDone done = one();
  ASSERT_TRUE(done.error);
  EXPECT_EQ(done.error->code(), Code::kNoSpace);
  EXPECT_EQ(done.error->sys_errno(), ENOSPC);
  expect_words(*done.error, {"write of 8192 bytes", "/dev/full"});
  // The others go on.
  io()->write(path("next"), 0, bytes.bytes(), 2);
  EXPECT_FALSE(one().error);
}

TEST_P(FileIoTest, RefusesWhatItCannotOpenAndBeginsNothing) {
  if (!io()) GTEST_SKIP() << skipped_;
  Memory bytes(4096, 0);
  const Error missing = error_of([&] { io()->read(path("none"), 0, bytes.bytes(), 1); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_EQ(missing.sys_errno(), ENOENT);
  expect_words(missing, {"none", "nothing was transferred"});
  EXPECT_EQ(error_of([&] { io()->write(scratch_.path(), 0, bytes.bytes(), 1); }).sys_errno(),
            EISDIR);
  EXPECT_EQ(error_of([&] { io()->read(-1, 0, bytes.bytes(), 1); }).sys_errno(), EBADF);
  EXPECT_EQ(error_of([&] { io()->read(path("none"), UINT64_MAX - 1, bytes.bytes(), 1); }).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(io()->pending(), 0u);
  EXPECT_TRUE(io()->wait(1).empty());
}

TEST_P(FileIoTest, UsesADescriptorOfTheProgram) {
  if (!io()) GTEST_SKIP() << skipped_;
  Memory written(10'000, 0), read(10'000, 0);
  written.fill(3);
  {
    const base::UniqueFd file(::open(path("mine").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    io()->write(file.get(), 50, written.bytes(), 1);
  }  // closed too early: the transfer has its own
  EXPECT_FALSE(one().error);
  const base::UniqueFd file(::open(path("mine").c_str(), O_RDONLY | O_CLOEXEC));
  io()->read(file.get(), 50, read.bytes(), 2);
  EXPECT_FALSE(one().error);
  EXPECT_TRUE(equal(written, read));
  const base::UniqueFd direct(::open(path("mine").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!direct) GTEST_SKIP() << "no O_DIRECT here";
  const Error odd = error_of([&] { io()->read(direct.get(), 50, read.bytes(), 3); });
  EXPECT_EQ(odd.code(), Code::kInvalidArgument);
  expect_words(odd, {"multiples of 4096"});
}

TEST_P(FileIoTest, WaitsInItsDestructor) {
  if (!io()) GTEST_SKIP() << skipped_;
  Memory written(1 << 20, 0), read(1 << 20, 0);
  written.fill(4);
  io()->write(path("late"), 0, written.bytes(), 1);
  io_.reset();
  io()->read(path("late"), 0, read.bytes(), 2);
  EXPECT_FALSE(one().error);
  EXPECT_TRUE(equal(written, read));
}

TEST_P(FileIoTest, BelongsToItsProcess) {
  if (!io()) GTEST_SKIP() << skipped_;
  Memory bytes(4096, 0);
  const int status = in_child([&] {
    const Error error = error_of([&] { io()->write(path("child"), 0, bytes.bytes(), 1); });
    io_.reset();
    return error.code() == Code::kWrongState ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  io()->write(path("parent"), 0, bytes.bytes(), 1);
  EXPECT_FALSE(one().error);
  EXPECT_FALSE(fs::exists(path("child")));
}

INSTANTIATE_TEST_SUITE_P(Queues, FileIoTest,
                         ::testing::Values(IoQueueKind::kUring, IoQueueKind::kThreads),
                         [](const auto& info) {
                           return info.param == IoQueueKind::kUring ? "uring" : "threads";
                         });

TEST(FileIo, RefusesOptionsThatItCannotServe) {
  const auto refused = [](const FileIoOptions& options, std::string_view word) {
    const Error error = error_of([&] { FileIo io(options); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    expect_words(error, {word, "nothing was started"});
  };
  refused({.block_bytes = 1000}, "block_bytes is 1000");
  refused({.queue_depth = 0}, "queue_depth is 0");
  refused({.submit_batch = 0}, "submit_batch is 0");
  refused({.queue = IoQueueKind::kAio}, "kAio");
  refused({.deadline_seconds = 0}, "deadline_seconds");
}

// Where there are no offsets, bytes would come in any order, or at the end.
TEST(FileIo, RefusesPipesAndDescriptorsThatAppend) {
  const ScratchDirectory scratch;
  FileIo io({.queue_depth = 1});
  Memory bytes(8192, 0);
  ASSERT_EQ(::mkfifo((scratch / "fifo").c_str(), 0600), 0);
  const Error fifo = error_of([&] { io.read(scratch / "fifo", 0, bytes.bytes(), 1); });
  EXPECT_EQ(fifo.sys_errno(), ESPIPE);
  expect_words(fifo, {"fifo", "cannot seek", "nothing was transferred"});
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const base::UniqueFd out(ends[0]), in(ends[1]);
  EXPECT_EQ(error_of([&] { io.write(in.get(), 0, bytes.bytes(), 1); }).sys_errno(), ESPIPE);
  const base::UniqueFd appends(
      ::open((scratch / "a").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  expect_words(error_of([&] { io.write(appends.get(), 0, bytes.bytes(), 1); }), {"O_APPEND"});
  EXPECT_EQ(error_of([&] { io.read("", 0, bytes.bytes(), 1); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { io.read(std::string("a\0b", 3), 0, bytes.bytes(), 1); }).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(io.pending(), 0u);
}

// A lock that another thread holds at the fork stays held in the child.
TEST(FileIo, EndsInAChildThatWasForkedDuringAWait) {
  const ScratchDirectory scratch;
  auto io = std::make_unique<FileIo>();
  Memory bytes(1 << 20, 0);
  std::atomic<bool> stop{false};
  std::thread waits([&] {
    while (!stop.load()) {
      io->write(scratch / "a", 0, bytes.bytes(), 1);
      (void)io->wait(1);
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(in_child([&] {
                const bool refused =
                    error_of([&] { (void)io->pending(); }).code() == Code::kWrongState &&
                    error_of([&] { (void)io->stats(); }).code() == Code::kWrongState;
                io.reset();
                return refused ? 0 : 1;
              }),
              0);
  }
  stop.store(true);
  waits.join();
}

TEST(FileIo, RefusesThePageCacheWhereItIsToldTo) {
  const ScratchDirectory scratch;
  FileIo io({.direct = DirectIo::kRequire});
  Memory bytes(8192, 0);
  const std::string file = scratch / "a";
  const Error error = error_of([&] { io.write(file, 0, bytes.bytes().first(5000), 1); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  expect_words(error, {"write of 5000 bytes", "multiples of 4096"});
  EXPECT_FALSE(fs::exists(file));
  if (!has_direct(scratch)) GTEST_SKIP() << "no O_DIRECT here";
  io.write(file, 0, bytes.bytes(), 1);
  EXPECT_FALSE(io.wait(1).at(0).error);
  io.read(file, 0, {}, 2);
  EXPECT_FALSE(io.wait(1).at(0).error);
  EXPECT_EQ(io.stats().cached_bytes, 0u);
  const base::UniqueFd cached(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  expect_words(error_of([&] { io.read(cached.get(), 0, bytes.bytes(), 3); }), {"no O_DIRECT"});
}

TEST(FileIo, NamesTheLimitOfFileSizes) {
  const ScratchDirectory scratch;
  EXPECT_EQ(in_child([&] {
              FileIo io;
              Memory bytes(8192, 0);
              if (!swap::test::limit_file_size(4096)) return 2;
              const Error error = error_of([&] { io.write(scratch / "a", 0, bytes.bytes(), 1); });
              return error.code() == Code::kNoSpace && error.sys_errno() == EFBIG ? 0 : 1;
            }),
            0);
}
}  // namespace
}  // namespace headrace
