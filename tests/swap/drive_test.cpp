// SPDX-License-Identifier: Apache-2.0
#include "swap/drive.hpp"

#include <gtest/gtest.h>

#include <list>
#include <thread>

#include "drive_bench.hpp"
#include "limits.hpp"
#include "support/io_queue_fault.hpp"

namespace headrace::swap::test {
namespace {
using Seen = Script::Seen;

class DriveTest : public testing::Test {
 protected:
  std::unique_ptr<Drive> make(IoQueueMaker maker, double warn_seconds = 60,
                              double deadline_seconds = 60) {
    return make_drive_thread(conductor_, {.path = file_.path(),
                                          .fd = file_.fd(),
                                          .index = 3,
                                          .io_block_bytes = 4 * kPage,
                                          .queue_depth = 4,
                                          .warn_seconds = warn_seconds,
                                          .deadline_seconds = deadline_seconds,
                                          .log = log_.sink(),
                                          .make_queue = std::move(maker)});
  }
  std::unique_ptr<Drive> make_scripted(double warn_seconds = 60, double deadline_seconds = 60) {
    return make(scripted(script_), warn_seconds, deadline_seconds);
  }
  std::unique_ptr<Drive> make_faulty(const FaultPlan& plan, double warn_seconds = 60,
                                     double deadline_seconds = 60) {
    return make(
        [plan](const IoQueueOptions& options) {
          return ChosenIoQueue{make_io_queue_fault(make_io_queue_threads(options), plan, nullptr),
                               ""};
        },
        warn_seconds, deadline_seconds);
  }
  Transfer& run(Drive& drive, IoKind kind, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
    transfers_.push_back(make_transfer(kind, memory_.data(), offset_bytes, size_bytes));
    drive.start(transfers_.back());
    conductor_.wait_for(transfers_.size());
    return transfers_.back();
  }
  Transfer& run_sync(Drive& drive) {
    transfers_.push_back(make_transfer(IoKind::kSync, nullptr, 0, 0));
    drive.start(transfers_.back());
    conductor_.wait_for(transfers_.size());
    return transfers_.back();
  }
  Transfer& begin(Drive& drive, std::uint64_t page, std::uint64_t pages, Priority priority) {
    transfers_.push_back(
        make_transfer(IoKind::kRead, memory_.data(), page * kPage, pages * kPage, priority));
    drive.start(transfers_.back());
    return transfers_.back();
  }
  void wait_for_requests(std::size_t count) {
    while (script_.requests().size() < count) std::this_thread::yield();
  }

  ScratchDirectory scratch_;
  TestFile file_{scratch_, 64 * kPage};
  Pages memory_{64 * kPage};
  CollectingConductor conductor_;
  RememberedLog log_;
  Script script_;
  std::list<Transfer> transfers_;
};

TEST_F(DriveTest, MovesATransferOfManyBlocksByteForByte) {
  const auto drive = make({});
  const Transfer& read = run(*drive, IoKind::kRead, 3 * kPage, 41 * kPage);
  EXPECT_EQ(read.error, 0);
  EXPECT_EQ(read.done_bytes, 41 * kPage);
  EXPECT_EQ(std::memcmp(memory_.data(), file_.contents().data() + 3 * kPage, 41 * kPage), 0);
  fill_pattern(memory_.span(), 8);
  const Transfer& write = run(*drive, IoKind::kWrite, 20 * kPage, 30 * kPage);
  EXPECT_EQ(write.error, 0);
  EXPECT_EQ(write.done_bytes, 30 * kPage);
  const auto now = file_.now_on_disk();
  EXPECT_EQ(std::memcmp(now.data() + 20 * kPage, memory_.data(), 30 * kPage), 0);
  EXPECT_EQ(std::memcmp(now.data(), file_.contents().data(), 20 * kPage), 0);
}

TEST_F(DriveTest, CutsTransfersIntoBlocks) {
  const auto drive = make_scripted();
  run(*drive, IoKind::kRead, 2 * kPage, 9 * kPage);
  EXPECT_EQ(script_.requests(), (std::vector<Seen>{{IoKind::kRead, 2 * kPage, 4 * kPage},
                                                   {IoKind::kRead, 6 * kPage, 4 * kPage},
                                                   {IoKind::kRead, 10 * kPage, kPage}}));
}

TEST_F(DriveTest, ATransferOfNothingEndsAtOnce) {
  const auto drive = make_scripted();
  const Transfer& transfer = run(*drive, IoKind::kWrite, 0, 0);
  EXPECT_EQ(transfer.error, 0);
  EXPECT_EQ(transfer.done_bytes, 0u);
}

TEST_F(DriveTest, DemandGoesBeforePrefetchAndPrefetchBeforeWriteBack) {
  script_.open = false;
  const auto drive = make_scripted();
  begin(*drive, 0, 8,
        Priority::kWriteBack);  // its first block is in the queue; the second has to wait
  wait_for_requests(1);
  begin(*drive, 20, 1, Priority::kWriteBack);
  begin(*drive, 30, 1, Priority::kPrefetch);
  begin(*drive, 31, 1, Priority::kPrefetch);
  begin(*drive, 40, 8, Priority::kDemand);
  begin(*drive, 50, 1, Priority::kDemand);
  script_.open = true;
  conductor_.wait_for(6);
  std::vector<std::uint64_t> pages;
  for (const Seen& seen : script_.requests()) pages.push_back(seen.offset_bytes / kPage);
  EXPECT_EQ(pages, (std::vector<std::uint64_t>{0, 40, 44, 50, 30, 31, 4, 20}));
}

TEST_F(DriveTest, ContinuesAShortTransferWhereItStopped) {
  script_.answer = [](const IoRequest& request, std::size_t number) -> std::int64_t {
    return number == 0 ? 3 * 512 : request.size_bytes;
  };
  const auto drive = make_scripted();
  const Transfer& transfer = run(*drive, IoKind::kWrite, kPage, 2 * kPage);
  EXPECT_EQ(transfer.done_bytes, 2 * kPage);
  EXPECT_EQ(transfer.error, 0);
  EXPECT_EQ(script_.requests()[1], (Seen{IoKind::kWrite, kPage + 1536, 2 * kPage - 1536}));
  EXPECT_EQ(drive->counters().retries, 1u);
}

TEST_F(DriveTest, MovesTheLastPageAgainAfterAStopInsideASector) {
  script_.answer = [](const IoRequest& request, std::size_t number) -> std::int64_t {
    return number == 0 ? 4096 + 1000 : request.size_bytes;
  };
  const auto drive = make_scripted();
  const Transfer& transfer = run(*drive, IoKind::kRead, 0, 4 * kPage);
  EXPECT_EQ(transfer.done_bytes, 4 * kPage);
  EXPECT_EQ(script_.requests()[1], (Seen{IoKind::kRead, kPage, 3 * kPage}));
}

TEST_F(DriveTest, MovesTheLastPageAgainWhereTheDriveWantsLargerStepsThanSectors) {
  script_.answer = [](const IoRequest& request, std::size_t number) -> std::int64_t {
    if (number == 0) return 4096 + 512;
    return request.offset_bytes % kPage != 0 ? -EINVAL : std::int64_t{request.size_bytes};
  };
  const auto drive = make_scripted();
  const Transfer& transfer = run(*drive, IoKind::kRead, 0, 2 * kPage);
  EXPECT_EQ(transfer.error, 0);
  EXPECT_EQ(transfer.done_bytes, 2 * kPage);
  EXPECT_EQ(script_.requests().back(), (Seen{IoKind::kRead, kPage, kPage}));
}

TEST_F(DriveTest, AReadStopsAtTheEndOfTheFileWithoutAnError) {
  const auto drive = make({});
  const Transfer& across = run(*drive, IoKind::kRead, 60 * kPage, 16 * kPage);
  EXPECT_EQ(across.error, 0);
  EXPECT_EQ(across.done_bytes, 4 * kPage);
  const Transfer& past = run(*drive, IoKind::kRead, 80 * kPage, 2 * kPage);
  EXPECT_EQ(past.error, 0);
  EXPECT_EQ(past.done_bytes, 0u);
  ASSERT_EQ(::ftruncate(file_.fd(), static_cast<off_t>(6 * kPage + 1234)), 0);
  const Transfer& odd = run(*drive, IoKind::kRead, 0, 12 * kPage);
  EXPECT_EQ(odd.error, 0);
  EXPECT_EQ(odd.done_bytes, 6 * kPage + 1234);
}

TEST_F(DriveTest, AFileThatSomebodyRemovesServesOn) {
  const auto drive = make({});
  std::filesystem::remove(file_.path());
  fill_pattern(memory_.span(), 5);
  EXPECT_EQ(run(*drive, IoKind::kWrite, 0, 8 * kPage).error, 0);
  Pages back(8 * kPage);
  transfers_.push_back(make_transfer(IoKind::kRead, back.data(), 0, 8 * kPage));
  drive->start(transfers_.back());
  conductor_.wait_for(2);
  EXPECT_EQ(std::memcmp(back.data(), memory_.data(), 8 * kPage), 0);
}

// The host may lower the limit at any time. Passing it raises a signal that ends a process.
TEST_F(DriveTest, AWriteBeyondTheFileSizeLimitIsAnErrorAndNotASignal) {
  const IoQueueMaker threads = [](const IoQueueOptions& options) {
    return ChosenIoQueue{make_io_queue_threads(options), ""};
  };
  const IoQueueMaker aio_if_any = [](const IoQueueOptions& options) {
    return choose_io_queue(IoQueueKind::kAuto, options, {.uring = make_io_queue_aio});
  };
  for (const IoQueueMaker& maker : {IoQueueMaker{}, threads, aio_if_any}) {
    EXPECT_EQ(in_child([&] {
                const auto drive = make(maker);
                limit_file_size(8 * kPage);
                transfers_.clear();
                const Transfer& write = run(*drive, IoKind::kWrite, 4 * kPage, 16 * kPage);
                if (write.error != EFBIG) return 1;
                return write.done_bytes == 4 * kPage ? 0 : 2;
              }),
              0);
  }
}

TEST_F(DriveTest, WritesThatTakeNothingEndInEio) {
  script_.answer = [](const IoRequest&, std::size_t) { return std::int64_t{0}; };
  const auto drive = make_scripted();
  const Transfer& transfer = run(*drive, IoKind::kWrite, 0, kPage);
  EXPECT_EQ(transfer.error, EIO);
  EXPECT_EQ(transfer.done_bytes, 0u);
  EXPECT_LT(script_.requests().size(), 100u);
}

TEST_F(DriveTest, WritesThatStopAtTheSameOddByteEndInEio) {
  script_.answer = [](const IoRequest&, std::size_t) { return std::int64_t{100}; };
  const auto drive = make_scripted();
  EXPECT_EQ(run(*drive, IoKind::kWrite, 0, kPage).error, EIO);
}

TEST_F(DriveTest, RepeatsTransientErrorsAndGivesUpOnLastingOnes) {
  for (const int error : {EAGAIN, EINTR, EBUSY}) {
    script_.answer = [error, calls = 0](const IoRequest& request, std::size_t) mutable {
      return calls++ < 3 ? -std::int64_t{error} : std::int64_t{request.size_bytes};
    };
    const auto drive = make_scripted();
    const Transfer& transfer = run(*drive, IoKind::kRead, 0, kPage);
    EXPECT_EQ(transfer.error, 0);
    EXPECT_EQ(drive->counters().retries, 3u);
  }
  script_.answer = [](const IoRequest&, std::size_t) { return -std::int64_t{EAGAIN}; };
  const auto drive = make_scripted();
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, kPage).error, EAGAIN);
}

TEST_F(DriveTest, ARetryThatWaitsHoldsNobodyElseUp) {
  script_.depth = 2;
  std::atomic<bool> heal{false};
  script_.answer = [&heal](const IoRequest& request, std::size_t) -> std::int64_t {
    const bool sick = request.offset_bytes == 0 && !heal.load();
    return sick ? -EAGAIN : std::int64_t{request.size_bytes};
  };
  const auto drive = make_scripted();
  begin(*drive, 0, 1, Priority::kDemand);
  for (std::uint64_t page = 1; page <= 3; ++page) begin(*drive, page, 1, Priority::kDemand);
  conductor_.wait_for(3);
  heal = true;
  conductor_.wait_for(4);
  EXPECT_EQ(conductor_.order().back(), &transfers_.front());
  EXPECT_EQ(transfers_.front().error, 0);
}

TEST_F(DriveTest, AnErrorEndsTheTransferOnceItsOtherBlocksCameBack) {
  script_.depth = 3;
  script_.open = false;
  script_.newest_first = true;
  script_.answer = [](const IoRequest& request, std::size_t) -> std::int64_t {
    return request.offset_bytes == 8 * kPage ? -EIO : std::int64_t{request.size_bytes};
  };
  const auto drive = make_scripted();
  Transfer& transfer = begin(*drive, 0, 24, Priority::kDemand);
  wait_for_requests(3);
  script_.open = true;  // the third block fails, then the two before it arrive
  conductor_.wait_for(1);
  EXPECT_EQ(transfer.error, EIO);
  EXPECT_EQ(transfer.done_bytes, 8 * kPage);
  EXPECT_EQ(script_.requests().size(), 3u) << "nothing is issued after the failure";
}

TEST_F(DriveTest, DoneBytesEndAtTheFirstGap) {
  script_.depth = 3;
  script_.open = false;
  script_.answer = [](const IoRequest& request, std::size_t) -> std::int64_t {
    return request.offset_bytes == 4 * kPage ? -EIO : std::int64_t{request.size_bytes};
  };
  const auto drive = make_scripted();
  Transfer& transfer = begin(*drive, 0, 24, Priority::kDemand);
  wait_for_requests(3);
  script_.open = true;  // the first arrives, the second fails, the third and fourth arrive
  conductor_.wait_for(1);
  EXPECT_EQ(transfer.error, EIO);
  EXPECT_EQ(transfer.done_bytes, 4 * kPage);
  EXPECT_EQ(drive->counters().read_bytes, 12 * kPage);
}

TEST_F(DriveTest, TheDriveServesOnAfterAnError) {
  const auto drive = make_faulty({.fail_request = 2, .fail_errno = EREMOTEIO});
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, 4 * kPage).error, 0);
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, 4 * kPage).error, EREMOTEIO);
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, 16 * kPage).done_bytes, 16 * kPage);
  EXPECT_FALSE(drive->stalled());
}

TEST_F(DriveTest, AnAnswerOfMoreThanWasAskedIsAnError) {
  script_.answer = [](const IoRequest& request, std::size_t) {
    return std::int64_t{request.size_bytes} + 1;
  };
  const auto drive = make_scripted();
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, kPage).error, EIO);
}

TEST_F(DriveTest, NamesAStallOnceAndGivesItUpAtTheDeadline) {
  auto drive = make_faulty({.lost = 1}, .02, 1);
  const Transfer& transfer = run(*drive, IoKind::kRead, 8 * kPage, 2 * kPage);
  EXPECT_EQ(transfer.error, ETIMEDOUT);
  EXPECT_EQ(transfer.done_bytes, 0u);
  EXPECT_TRUE(drive->stalled());
  const auto warnings = log_.at(LogLevel::kWarning);
  ASSERT_EQ(warnings.size(), 1u);
  for (const std::string part : {"read", "8192 bytes", "offset 32768", file_.path().c_str(),
                                 "tile 3 of h.0", "1 requests in flight", "io_deadline_seconds"}) {
    EXPECT_NE(warnings[0].find(part), std::string::npos) << part << " in " << warnings[0];
  }
  EXPECT_EQ(log_.at(LogLevel::kError).size(), 1u);
  drive.reset();  // returns, though the request never will
  ASSERT_EQ(log_.at(LogLevel::kWarning).size(), 2u);
  EXPECT_NE(log_.at(LogLevel::kWarning)[1].find("left behind"), std::string::npos);
}

TEST_F(DriveTest, ServesOnWithTheBlocksThatAreLeft) {
  script_.depth = 2;
  script_.lost_offset_bytes = 8 * kPage;
  auto drive = make_scripted(.02, .1);
  const Transfer& broken = run(*drive, IoKind::kRead, 0, 24 * kPage);
  EXPECT_EQ(broken.error, ETIMEDOUT);
  EXPECT_EQ(broken.done_bytes, 8 * kPage);
  EXPECT_TRUE(drive->stalled());
  const Transfer& next = run(*drive, IoKind::kRead, 32 * kPage, 16 * kPage);
  EXPECT_EQ(next.error, 0);
  EXPECT_EQ(next.done_bytes, 16 * kPage);
  drive.reset();
  EXPECT_EQ(script_.live_queues, 1) << "left behind, since a request is still in it";
}

TEST_F(DriveTest, FailsWhatWaitsWhenEveryRequestIsLost) {
  auto drive = make_faulty({.lost = 1}, .02, .1);
  run(*drive, IoKind::kRead, 0, 16 * kPage);  // all four blocks are gone
  const Transfer& next = run(*drive, IoKind::kWrite, 0, 16 * kPage);
  EXPECT_EQ(next.error, ETIMEDOUT);
  EXPECT_EQ(next.done_bytes, 0u);
}

TEST_F(DriveTest, ACompletionAfterTheDeadlineOnlyFreesItsBlock) {
  script_.open = false;
  auto drive = make_scripted(.01, .05);
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, kPage).error, ETIMEDOUT);
  script_.open = true;
  Transfer* next = &run(*drive, IoKind::kRead, 0, kPage);
  while (next->error == ETIMEDOUT) next = &run(*drive, IoKind::kRead, 0, kPage);
  EXPECT_EQ(next->error, 0);
  EXPECT_TRUE(drive->stalled()) << "stays so: somebody may have given the memory up";
  drive.reset();
  EXPECT_EQ(script_.live_queues, 0) << "nothing is left in the kernel, so nothing is leaked";
}

TEST_F(DriveTest, TheDestructorWaitsForWhatWasStarted) {
  {
    const auto drive = make({});
    for (std::uint64_t i = 0; i < 20; ++i) {
      std::byte* const data = memory_.data() + i * 3 * kPage;
      transfers_.push_back(make_transfer(IoKind::kRead, data, i * kPage, 3 * kPage));
      drive->start(transfers_.back());
    }
  }
  EXPECT_EQ(conductor_.posted(), 20u);
  for (const Transfer& transfer : transfers_) EXPECT_EQ(transfer.done_bytes, 3 * kPage);
}

TEST_F(DriveTest, CountsBytesRequestsAndBusyTime) {
  const auto drive = make({});
  run(*drive, IoKind::kRead, 0, 10 * kPage);
  run(*drive, IoKind::kWrite, 0, 4 * kPage);
  const DriveCounters counters = drive->counters();
  EXPECT_EQ(counters.read_bytes, 10 * kPage);
  EXPECT_EQ(counters.written_bytes, 4 * kPage);
  EXPECT_EQ(counters.reads, 3u);
  EXPECT_EQ(counters.writes, 1u);
  EXPECT_EQ(counters.retries, 0u);
  EXPECT_GT(counters.read_busy_seconds, 0);
  EXPECT_GT(counters.write_busy_seconds, 0);
}

TEST_F(DriveTest, ASyncIsOneRequestAndNeitherAReadNorAWrite) {
  const auto drive = make_scripted();
  run(*drive, IoKind::kWrite, 0, 4 * kPage);
  const Transfer& sync = run_sync(*drive);
  EXPECT_EQ(sync.error, 0);
  EXPECT_EQ(sync.done_bytes, 0u);
  ASSERT_EQ(script_.requests().size(), 2u);
  EXPECT_EQ(script_.requests()[1], (Seen{IoKind::kSync, 0, 0}));
  const DriveCounters counters = drive->counters();
  EXPECT_EQ(counters.syncs, 1u);
  EXPECT_EQ(counters.reads, 0u);
  EXPECT_EQ(counters.writes, 1u);
  EXPECT_EQ(counters.written_bytes, 4 * kPage);
}

TEST_F(DriveTest, AFailedSyncIsNotRepeatedAndNoLaterOneIsBelieved) {
  for (const int error : {EIO, EINTR, EAGAIN, EBUSY}) {
    Script script;
    script.answer = [error](const IoRequest&, std::size_t number) -> std::int64_t {
      return number == 0 ? -error : 0;
    };
    const auto drive = make(scripted(script));
    EXPECT_EQ(run_sync(*drive).error, error);
    EXPECT_EQ(script.requests().size(), 1u);
    EXPECT_EQ(drive->counters().retries, 0u);
    EXPECT_EQ(run_sync(*drive).error, error) << "the kernel said 0 the second time";
  }
}

TEST_F(DriveTest, ASyncThatTheQueueDoesNotTakeIsHandedOverAgain) {
  script_.refusals = 3;
  const auto drive = make_scripted();
  EXPECT_EQ(run_sync(*drive).error, 0);
  EXPECT_EQ(script_.requests().size(), 1u);
  EXPECT_EQ(drive->counters().syncs, 1u);
}

TEST_F(DriveTest, ALostSyncIsNamedAndGivenUpAtTheDeadline) {
  auto drive = make_faulty({.lost = 1}, .02, 1);
  EXPECT_EQ(run_sync(*drive).error, ETIMEDOUT);
  EXPECT_TRUE(drive->stalled());
  const auto warnings = log_.at(LogLevel::kWarning);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find(": a sync of " + file_.path() + " for tile 3"), std::string::npos)
      << warnings[0];
  EXPECT_EQ(log_.at(LogLevel::kError).size(), 1u);
  drive.reset();
}

// Without O_DIRECT the kernel tells a failed write-back once: to the write that waits for it.
TEST_F(DriveTest, ASyncFailsAfterAWriteBackThatFailed) {
  const int fd = ::open(file_.path().c_str(), O_RDWR | O_CLOEXEC);
  bool filtered = false;
  const IoQueueMaker maker = [&filtered](const IoQueueOptions& options) {
    ChosenIoQueue chosen{make_io_queue_threads(options), ""};
    filtered = forbid(SYS_sync_file_range, EIO);  // for the drive's thread alone, which calls it
    return chosen;
  };
  auto drive = make_drive_thread(conductor_, {.path = file_.path(), .fd = fd, .make_queue = maker});
  if (filtered) {
    EXPECT_EQ(run_sync(*drive).error, 0);
    EXPECT_EQ(run(*drive, IoKind::kWrite, 0, 4 * kPage).error, EIO);
    EXPECT_EQ(run_sync(*drive).error, EIO);
  }
  drive.reset();
  ::close(fd);
  if (!filtered) GTEST_SKIP() << "seccomp filters cannot be installed here";
}

TEST_F(DriveTest, ItsThreadIsNamedBlocksSignalsAndIsGoneAtItsEnd) {
  {
    const auto drive = make_scripted();
    run(*drive, IoKind::kRead, 0, kPage);
    EXPECT_EQ(threads_called("headrace-io3"), 1u);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream comm(entry.path() / "comm"), status(entry.path() / "status");
      std::string name, word, blocked;
      std::getline(comm, name);
      while (name == "headrace-io3" && status >> word) {
        if (word == "SigBlk:") status >> blocked;
      }
      if (name != "headrace-io3") continue;
      const auto mask = std::stoull(blocked, nullptr, 16);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM, SIGXFSZ}) {
        EXPECT_NE(mask & (1ull << (signal - 1)), 0u) << signal;
      }
    }
  }
  EXPECT_EQ(threads_called("headrace-io"), 0u);
}

TEST_F(DriveTest, ThrowsWhatTheQueuesMakerThrows) {
  const IoQueueMaker refusing = [](const IoQueueOptions&) -> ChosenIoQueue {
    throw uring_refused("io_uring_setup", EPERM);
  };
  try {
    make(refusing);
    FAIL() << "was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.sys_errno(), EPERM);
  }
  EXPECT_EQ(threads_called("headrace-io"), 0u);
}

TEST_F(DriveTest, RepeatsWhatFailedOnRegisteredMemoryWithoutItAndSaysSoOnce) {
  script_.depth = 4;
  script_.registers_buffers = true;
  // The four that are on their way, and later one that is not on registered memory.
  script_.answer = [](const IoRequest& request, std::size_t number) {
    return number < 4 || number == 8 ? std::int64_t{-EFAULT} : std::int64_t{request.size_bytes};
  };
  const auto drive = make_scripted();
  EXPECT_EQ(text_of(drive->registered()), "registered buffers");
  const Transfer& four_blocks = run(*drive, IoKind::kWrite, 0, 16 * kPage);
  EXPECT_EQ(four_blocks.error, 0);
  EXPECT_EQ(four_blocks.done_bytes, 16 * kPage);
  EXPECT_EQ(drive->counters().retries, 4u);
  EXPECT_EQ(text_of(drive->registered()), "");
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, kPage).error, EFAULT) << "is not repeated any more";
  EXPECT_EQ(run(*drive, IoKind::kRead, 0, kPage).error, 0);
  const auto said = log_.at(LogLevel::kInfo);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("a request on registered memory failed: EFAULT"), std::string::npos)
      << said[0];
}

TEST_F(DriveTest, AnErrorThatRegisteredMemoryDoesNotCauseIsReportedAfterOneMoreAttempt) {
  for (const IoKind kind : {IoKind::kRead, IoKind::kSync}) {
    Script script;
    script.registers_buffers = true;
    script.answer = [](const IoRequest&, std::size_t) { return std::int64_t{-EIO}; };
    const auto drive = make(scripted(script));
    EXPECT_EQ((kind == IoKind::kSync ? run_sync(*drive) : run(*drive, kind, 0, kPage)).error, EIO);
    EXPECT_EQ(script.requests().size(), kind == IoKind::kSync ? 1u : 2u);
  }
}

TEST_F(DriveTest, TellsWhichQueueServesAndWhy) {
  const auto drive = make([](const IoQueueOptions& options) {
    EXPECT_EQ(options.files.size(), 1u);
    return ChosenIoQueue{make_io_queue_threads(options), "io_uring_setup was refused: EPERM"};
  });
  EXPECT_STREQ(drive->queue_name(), "threads");
  EXPECT_EQ(drive->queue_reason(), "io_uring_setup was refused: EPERM");
}
}  // namespace
}  // namespace headrace::swap::test
