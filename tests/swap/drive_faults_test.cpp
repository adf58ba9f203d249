// SPDX-License-Identifier: Apache-2.0
// Seeded schedules of faults under a drive: every transfer either moves its bytes exactly or says
// that it did not.
#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "drive_bench.hpp"
#include "support/io_queue_fault.hpp"

namespace headrace::swap::test {
namespace {
constexpr std::uint64_t kRegionPages = 12;
constexpr std::size_t kTransfers = 12;
constexpr std::uint64_t kSchedules = 300;

// Those of the queues that serve here.
const std::vector<IoQueueKind>& queue_kinds() {
  static const std::vector<IoQueueKind> kinds = [] {
    std::vector<IoQueueKind> found;
    for (const IoQueueKind kind : {IoQueueKind::kUring, IoQueueKind::kAio, IoQueueKind::kThreads}) {
      try {
        choose_io_queue(kind, {.depth = 2});
        found.push_back(kind);
      } catch (const Error& error) {
        std::printf("left out: %s\n", error.what());
      }
    }
    return found;
  }();
  return kinds;
}

ChosenIoQueue faulty(IoQueueKind kind, const IoQueueOptions& options, const FaultPlan& plan,
                     FaultCounts& counts) {
  return {make_io_queue_fault(choose_io_queue(kind, options).queue, plan, &counts), ""};
}

FaultPlan random_plan(std::uint64_t seed, bool with_lost) {
  std::mt19937_64 random(seed);
  const auto chance = [&random](double most) {
    return random() % 2 == 0 ? 0.0 : std::uniform_real_distribution<double>(0, most)(random);
  };
  FaultPlan plan{.seed = seed};
  plan.short_read = chance(.6);
  plan.short_write = chance(.6);
  plan.eio_read = chance(.05);
  plan.eio_write = chance(.05);
  plan.eagain = chance(.3);
  plan.eintr = chance(.3);
  plan.enospc = chance(.05);
  plan.flip_bit = chance(.1);
  plan.late = chance(.5);
  plan.flush_eagain = chance(.3);
  plan.lost = with_lost ? .05 : 0;
  plan.eio_sync = chance(.3);
  return plan;
}

// Memory and file outlive a schedule that lost a request, as the drive's contract asks.
struct Schedule {
  explicit Schedule(std::uint64_t seed) : file(scratch, kTransfers * kRegionPages * kPage, seed) {}
  ScratchDirectory scratch;
  TestFile file;
  Pages memory{kTransfers * kRegionPages * kPage};
  CollectingConductor conductor;
  FaultCounts counts;
  std::vector<Transfer> transfers;
  Transfer sync = make_transfer(IoKind::kSync, nullptr, 0, 0, Priority::kBackground);
};

void start_transfers(Schedule& schedule, Drive& drive, std::mt19937_64& random) {
  for (std::size_t i = 0; i < kTransfers; ++i) {
    const std::uint64_t pages = 1 + random() % kRegionPages;
    const IoKind kind = random() % 2 == 0 ? IoKind::kRead : IoKind::kWrite;
    std::byte* const data = schedule.memory.data() + i * kRegionPages * kPage;
    if (kind == IoKind::kWrite) fill_pattern({data, pages * kPage}, random());
    schedule.transfers.push_back(make_transfer(kind, data, i * kRegionPages * kPage, pages * kPage,
                                               static_cast<Priority>(random() % 3)));
  }
  for (Transfer& transfer : schedule.transfers) drive.start(transfer);
  drive.start(schedule.sync);
}

// What was reported as moved is there, byte for byte; what was not moved is reported.
void check(Schedule& schedule, const FaultPlan& plan) {
  const auto on_disk = schedule.file.now_on_disk();
  std::uint64_t wrong_reads = 0;
  for (const Transfer& transfer : schedule.transfers) {
    ASSERT_LE(transfer.done_bytes, transfer.size_bytes);
    if (transfer.kind == IoKind::kWrite) {
      ASSERT_TRUE(transfer.error != 0 || transfer.done_bytes == transfer.size_bytes)
          << "silently short";
      ASSERT_EQ(
          std::memcmp(on_disk.data() + transfer.offset_bytes, transfer.data, transfer.done_bytes),
          0);
    } else {
      // A short read at its very start looks like the file's end: reported by the count.
      const bool same = std::memcmp(schedule.file.contents().data() + transfer.offset_bytes,
                                    transfer.data, transfer.done_bytes) == 0;
      wrong_reads += same ? 0 : 1;
    }
  }
  ASSERT_LE(wrong_reads, schedule.counts.flips) << "bytes came wrong that no fault flipped";
  if (plan.eio_read + plan.eio_write + plan.enospc + plan.short_read + plan.lost == 0) {
    for (const Transfer& transfer : schedule.transfers) {
      ASSERT_EQ(transfer.error, 0) << "only transient faults, so all must arrive";
      ASSERT_EQ(transfer.done_bytes, transfer.size_bytes);
    }
  }
}

// Asked once at most, so that any fault of it is its outcome.
void check_sync(const Schedule& schedule, const FaultPlan& plan) {
  ASSERT_LE(schedule.counts.syncs, 1u);
  const int error = schedule.sync.error;
  ASSERT_TRUE(error != 0 || schedule.counts.syncs == 1) << "never asked for";
  ASSERT_TRUE(error == 0 || error == EIO || error == EAGAIN || error == EINTR ||
              (error == ETIMEDOUT && plan.lost > 0))
      << error;
  if (plan.eio_sync + plan.eagain + plan.eintr + plan.lost == 0) {
    ASSERT_EQ(error, 0);
  }
}

void run_schedule(std::uint64_t seed) {
  const bool with_lost = seed % 30 == 0;
  const FaultPlan plan = random_plan(seed, with_lost);
  auto schedule = std::make_unique<Schedule>(seed);
  std::mt19937_64 random(seed * 77);
  const IoQueueKind kind = queue_kinds()[seed % queue_kinds().size()];
  auto drive = make_drive_thread(schedule->conductor,
                                 {.path = schedule->file.path(),
                                  .fd = schedule->file.fd(),
                                  .io_block_bytes = (1 + seed % 4) * kPage,
                                  .queue_depth = static_cast<std::uint32_t>(1 + seed % 6),
                                  .warn_seconds = 60,
                                  .deadline_seconds = with_lost ? .1 : 60,
                                  .log = [](LogLevel, std::string_view) {},
                                  .make_queue =
                                      [&](const IoQueueOptions& options) {
                                        return faulty(kind, options, plan, schedule->counts);
                                      }});
  start_transfers(*schedule, *drive, random);
  schedule->conductor.wait_for(kTransfers + 1);
  const bool stalled = drive->stalled();
  drive.reset();
  EXPECT_TRUE(!stalled || with_lost);
  EXPECT_TRUE(stalled || schedule->counts.lost == 0);
  check(*schedule, plan);
  check_sync(*schedule, plan);
  static std::vector<std::unique_ptr<Schedule>> kept;
  if (stalled) kept.push_back(std::move(schedule));
}

// In groups, so that a failure names a small one and each stays well under a minute in every build.
class DriveFaults : public testing::TestWithParam<std::uint64_t> {};
TEST_P(DriveFaults, AreRetriedOrReportedNeverSilent) {
  for (std::uint64_t seed = GetParam(); seed <= kSchedules; seed += 10) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(run_schedule(seed));
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, DriveFaults, testing::Range<std::uint64_t>(1, 11));

// Each kind alone, on every queue.
struct OneFault {
  const char* name;
  FaultPlan plan;
  int error;  // how a write has to end
};
class DriveWith : public testing::TestWithParam<OneFault> {};
TEST_P(DriveWith, AllItsTransfersEndAsTheyMust) {
  for (const IoQueueKind kind : queue_kinds()) {
    Schedule schedule(1);
    auto drive = make_drive_thread(
        schedule.conductor, {.path = schedule.file.path(),
                             .fd = schedule.file.fd(),
                             .io_block_bytes = 4 * kPage,
                             .queue_depth = 4,
                             .make_queue = [&](const IoQueueOptions& options) {
                               return faulty(kind, options, GetParam().plan, schedule.counts);
                             }});
    fill_pattern(schedule.memory.span(), 4);
    Transfer transfer =
        make_transfer(IoKind::kWrite, schedule.memory.data(), 0, schedule.memory.size());
    drive->start(transfer);
    schedule.conductor.wait_for(1);
    drive.reset();
    EXPECT_EQ(transfer.error, GetParam().error);
    EXPECT_EQ(transfer.done_bytes == transfer.size_bytes, GetParam().error == 0);
    EXPECT_EQ(std::memcmp(schedule.file.now_on_disk().data(), schedule.memory.data(),
                          transfer.done_bytes),
              0);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Fault, DriveWith,
    testing::Values(OneFault{"nothing", {}, 0}, OneFault{"short_writes", {.short_write = .7}, 0},
                    OneFault{"eio", {.eio_write = .3}, EIO}, OneFault{"eagain", {.eagain = .5}, 0},
                    OneFault{"eintr", {.eintr = .5}, 0}, OneFault{"enospc", {.enospc = .3}, ENOSPC},
                    OneFault{"edquot", {.enospc = .3, .full_errno = EDQUOT}, EDQUOT},
                    OneFault{"slow", {.skip_requests = 5, .bytes_per_second = 4'000'000}, 0},
                    OneFault{"late", {.late = .7}, 0},
                    OneFault{"full_ring", {.flush_eagain = .7}, 0},
                    OneFault{"registered_memory_refused", {.registered_errno = EFAULT}, 0},
                    OneFault{"the_third_fails",
                             {.fail_request = 3, .fail_errno = EROFS, .only_writes = true},
                             EROFS}),
    [](const auto& info) { return info.param.name; });

TEST(DriveWithAFailedSync, AsksOnceOnEveryQueueThoughTheNextWouldSucceed) {
  for (const IoQueueKind kind : queue_kinds()) {
    for (const int error : {EIO, EINTR, EAGAIN, ENOSPC}) {
      const FaultPlan plan{.fail_sync = 2, .sync_errno = error};
      Schedule schedule(1);
      auto drive = make_drive_thread(schedule.conductor,
                                     {.path = schedule.file.path(),
                                      .fd = schedule.file.fd(),
                                      .make_queue = [&](const IoQueueOptions& options) {
                                        return faulty(kind, options, plan, schedule.counts);
                                      }});
      Transfer first = make_transfer(IoKind::kSync, nullptr, 0, 0);
      drive->start(first);
      schedule.conductor.wait_for(1);
      EXPECT_EQ(first.error, 0);
      drive->start(schedule.sync);
      schedule.conductor.wait_for(2);
      EXPECT_EQ(schedule.sync.error, error);
      EXPECT_EQ(schedule.counts.syncs, 2u);
    }
  }
}
}  // namespace
}  // namespace headrace::swap::test
