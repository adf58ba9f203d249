// SPDX-License-Identifier: Apache-2.0
// The drive over what the kernel really does when the ground moves under it, on every queue: a file
// that is cut, offsets that need 64 bits, a ring that may no longer be used.
#include <gtest/gtest.h>

#include <list>

#include "drive_bench.hpp"
#include "limits.hpp"

namespace headrace::swap::test {
namespace {

class DriveOverKernel : public testing::TestWithParam<IoQueueKind> {
 protected:
  void SetUp() override {
    try {
      choose_io_queue(GetParam(), {.depth = 2});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<Drive> make(IoQueueMaker maker = {}, double deadline_seconds = 60) {
    if (!maker) {
      maker = [](const IoQueueOptions& options) { return choose_io_queue(GetParam(), options); };
    }
    return make_drive_thread(conductor_, {.path = file_.path(),
                                          .fd = file_.fd(),
                                          .io_block_bytes = 4 * kPage,
                                          .queue_depth = 4,
                                          .warn_seconds = deadline_seconds / 4,
                                          .deadline_seconds = deadline_seconds,
                                          .log = log_.sink(),
                                          .make_queue = std::move(maker)});
  }
  Transfer& run(Drive& drive, IoKind kind, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
    transfers_.push_back(make_transfer(kind, memory_.data(), offset_bytes, size_bytes));
    drive.start(transfers_.back());
    conductor_.wait_for(transfers_.size());
    return transfers_.back();
  }

  ScratchDirectory scratch_;
  TestFile file_{scratch_, 64 * kPage};
  Pages memory_{64 * kPage};
  CollectingConductor conductor_;
  RememberedLog log_;
  std::list<Transfer> transfers_;
};
INSTANTIATE_TEST_SUITE_P(Queues, DriveOverKernel,
                         testing::Values(IoQueueKind::kUring, IoQueueKind::kAio,
                                         IoQueueKind::kThreads),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(DriveOverKernel, AFileThatIsCutInMidRunEndsReadsThereAndTakesWrites) {
  const auto drive = make();
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, 64 * kPage).done_bytes, 64 * kPage);
  ASSERT_EQ(::truncate(file_.path().c_str(), 20 * kPage), 0);
  const Transfer& across = run(*drive, IoKind::kRead, 8 * kPage, 40 * kPage);
  EXPECT_EQ(across.error, 0);
  EXPECT_EQ(across.done_bytes, 12 * kPage);
  EXPECT_EQ(run(*drive, IoKind::kRead, 40 * kPage, 8 * kPage).done_bytes, 0u);
  fill_pattern(memory_.span(), 6);
  EXPECT_EQ(run(*drive, IoKind::kWrite, 0, 64 * kPage).done_bytes, 64 * kPage);
  EXPECT_EQ(std::memcmp(file_.now_on_disk().data(), memory_.data(), 64 * kPage), 0);
}

TEST_P(DriveOverKernel, MovesBytesAcrossTwoAndFourGibibytes) {
  const auto drive = make();
  for (const std::uint64_t gib : {2u, 4u}) {
    const std::uint64_t at = (gib << 30) - 6 * kPage;  // inside an I/O block
    fill_pattern(memory_.span().first(16 * kPage), gib);
    const std::vector<std::byte> out(memory_.data(), memory_.data() + 16 * kPage);
    const Transfer& write = run(*drive, IoKind::kWrite, at, 16 * kPage);
    ASSERT_EQ(write.error, 0);
    ASSERT_EQ(write.done_bytes, 16 * kPage);
    std::memset(memory_.data(), 0, memory_.size());
    EXPECT_EQ(run(*drive, IoKind::kRead, at, 16 * kPage).done_bytes, 16 * kPage);
    EXPECT_EQ(std::memcmp(memory_.data(), out.data(), out.size()), 0);
    ASSERT_EQ(::pread(file_.fd(), memory_.data(), 16 * kPage, static_cast<off_t>(at)),
              static_cast<ssize_t>(16 * kPage));
    EXPECT_EQ(std::memcmp(memory_.data(), out.data(), out.size()), 0);
  }
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, 64 * kPage).done_bytes, 64 * kPage);
  EXPECT_EQ(std::memcmp(memory_.data(), file_.contents().data(), 64 * kPage), 0) << "wrapped round";
}

TEST_P(DriveOverKernel, SyncsBesideReadsAndWritesInFlight) {
  const auto drive = make();
  fill_pattern(memory_.span().first(32 * kPage), 9);
  for (std::uint64_t i = 0; i < 8; ++i) {
    const bool read = i % 2 == 0;
    std::byte* const data = memory_.data() + (read ? 32 * kPage : 0) + i * 4 * kPage;
    transfers_.push_back(make_transfer(read ? IoKind::kRead : IoKind::kWrite, data, i * 8 * kPage,
                                       4 * kPage, Priority::kWriteBack));
    transfers_.push_back(make_transfer(IoKind::kSync, nullptr, 0, 0, Priority::kBackground));
  }
  for (Transfer& transfer : transfers_) drive->start(transfer);
  conductor_.wait_for(transfers_.size());
  const auto on_disk = file_.now_on_disk();
  for (const Transfer& transfer : transfers_) {
    EXPECT_EQ(transfer.error, 0);
    EXPECT_EQ(transfer.done_bytes, transfer.size_bytes);
    if (transfer.data == nullptr) continue;
    EXPECT_EQ(
        std::memcmp(on_disk.data() + transfer.offset_bytes, transfer.data, transfer.size_bytes), 0);
  }
  EXPECT_EQ(drive->counters().syncs, 8u);
  EXPECT_EQ(drive->counters().writes, 4u);
  EXPECT_EQ(drive->counters().reads, 4u);
}

// A host that locks itself in after its start.
TEST_P(DriveOverKernel, AQueueWhoseUseIsForbiddenInMidRunEndsTransfersNamingTheErrno) {
  const bool ring = GetParam() == IoQueueKind::kUring;
  if (GetParam() == IoQueueKind::kThreads) GTEST_SKIP() << "reads and writes are never forbidden";
  const int status = in_child([&] {
    bool filtered = false;
    auto drive = make(
        [&](const IoQueueOptions& options) {
          ChosenIoQueue chosen = choose_io_queue(GetParam(), options);
          filtered = forbid(ring ? SYS_io_uring_enter : SYS_io_submit, EPERM);
          return chosen;
        },
        ring ? .2 : 60);
    if (!filtered) return 77;
    const Transfer& read = run(*drive, IoKind::kRead, 0, 8 * kPage);
    const Transfer& write = run(*drive, IoKind::kWrite, 0, 8 * kPage);
    if (read.done_bytes != 0 || write.done_bytes != 0) return 1;
    if (!ring) return read.error == EPERM && write.error == EPERM && !drive->stalled() ? 0 : 2;
    if (read.error != ETIMEDOUT || write.error != ETIMEDOUT || !drive->stalled()) return 3;
    drive.reset();
    const auto errors = log_.at(LogLevel::kError);
    return !errors.empty() && errors[0].find("EPERM") != std::string::npos ? 0 : 4;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

// The memory of a request that comes back twice may have another owner: nothing can be saved.
TEST(DriveDeathTest, EndsAtARequestThatIsCompletedTwice) {
  GTEST_FLAG_SET(death_test_style, "fast");  // the child's directory is this one, removed here
  const ScratchDirectory scratch;
  const TestFile file(scratch, 4 * kPage);
  EXPECT_DEATH(
      {
        Pages memory(4 * kPage);
        CollectingConductor conductor;
        Script script;
        script.twice = true;
        const auto drive = make_drive_thread(conductor, {.path = file.path(),
                                                         .fd = file.fd(),
                                                         .io_block_bytes = kPage,
                                                         .make_queue = scripted(script)});
        Transfer transfer = make_transfer(IoKind::kRead, memory.data(), 0, kPage);
        drive->start(transfer);
        conductor.wait_for(2);  // never: the second completion ends the process
      },
      "a request was completed twice");
}
}  // namespace
}  // namespace headrace::swap::test
