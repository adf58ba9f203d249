// SPDX-License-Identifier: Apache-2.0
// bench_runner_test: what `headrace bench` moves and compares: all of it, and nothing else.
#include "bench/runner.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "bench/stretch.hpp"
#include "headrace/error.hpp"
#include "support/io_queue_fault.hpp"
#include "support/process_facts.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::tools::bench_runner_test {
namespace {
namespace fs = std::filesystem;
using base::kKiB;
using base::kMiB;

TEST(BlockOrder, SequentialRegionsWanderOverThePart) {
  const Workload read{.block_bytes = kMiB};
  const BlockOrder first(read, 4 * kMiB, 16 * kMiB, 4 * kMiB, 0);
  const BlockOrder last(read, 4 * kMiB, 16 * kMiB, 4 * kMiB, 7);
  EXPECT_EQ(first.blocks(), 4u);
  EXPECT_EQ(first.offset_of(0), 4 * kMiB);
  EXPECT_EQ(first.offset_of(5), 5 * kMiB);  // around again
  EXPECT_EQ(last.begin_bytes(), 16 * kMiB);
}

TEST(BlockOrder, ARandomPassGoesToEachBlockOnceAndInAnotherOrderNextTime) {
  const Workload random{.pattern = Pattern::kRandRead, .block_bytes = 64 * kKiB};
  const BlockOrder order(random, kMiB, 8 * kMiB, 0, 3), next(random, kMiB, 8 * kMiB, 0, 4);
  ASSERT_EQ(order.blocks(), 128u);
  std::vector<std::uint64_t> offsets, others;
  for (std::uint64_t n = 0; n < 128; ++n) {
    offsets.push_back(order.offset_of(n));
    others.push_back(next.offset_of(n));
  }
  EXPECT_FALSE(std::ranges::is_sorted(offsets));
  EXPECT_NE(offsets, others);
  const std::set<std::uint64_t> once(offsets.begin(), offsets.end());
  EXPECT_EQ(once.size(), 128u);
  EXPECT_EQ(*once.begin(), kMiB);
  EXPECT_EQ(*once.rbegin(), 9 * kMiB - 64 * kKiB);
}

TEST(Stamps, TellAPageFromEveryOther) {
  const Stamps stamps(1), others(2);
  std::vector<std::byte> pages(4 * kPageBytes);
  stamps.fill(pages);
  Stamps::stamp(pages, 10, 3);
  const auto page = [&](std::size_t i) {
    return std::span<const std::byte, kPageBytes>(pages.data() + i * kPageBytes, kPageBytes);
  };
  EXPECT_EQ(stamps.fault(page(2), 12, 3, true), "");
  EXPECT_NE(stamps.fault(page(2), 11, 3, false), "");
  EXPECT_NE(stamps.fault(page(2), 12, 4, false), "");
  EXPECT_NE(others.fault(page(2), 12, 3, false), "");
  for (const std::size_t at : {std::size_t{24}, std::size_t{2048}, kPageBytes - 1}) {
    pages[at] ^= std::byte{1};
    EXPECT_NE(stamps.fault(page(0), 10, 3, true), "") << at;
    EXPECT_EQ(stamps.fault(page(0), 10, 3, false), "") << at;
    pages[at] ^= std::byte{1};
  }
}

class RunnerTest : public ::testing::Test {
 protected:
  RunnerOptions options() const {
    RunnerOptions options;
    options.paths = {folder_.string()};
    options.file_bytes = 32 * kMiB;
    options.in_flight_bytes = 64 * kMiB;
    return options;
  }
  // A queue that fails as planned, after the layout's requests.
  static QueueChooser faulty(const swap::FaultPlan& plan, swap::FaultCounts& counts) {
    return [plan, &counts](IoQueueKind, const swap::IoQueueOptions& queue) {
      return swap::ChosenIoQueue{
          swap::make_io_queue_fault(swap::make_io_queue_threads(queue), plan, &counts), ""};
    };
  }
  void expect_nothing_left() const {
    for (const auto& entry : fs::recursive_directory_iterator(folder_.string()))
      EXPECT_FALSE(entry.is_regular_file()) << entry.path();
  }
  const testing::TemporaryDirectory folder_;
};

TEST_F(RunnerTest, EveryPatternMovesJustWhatItWasAskedToOnEveryQueue) {
  for (const IoQueueKind queue : {IoQueueKind::kAuto, IoQueueKind::kThreads}) {
    Runner runner(options());
    runner.lay_out();
    for (const Pattern pattern : {Pattern::kRead, Pattern::kWrite, Pattern::kRandRead,
                                  Pattern::kRandWrite, Pattern::kMixed}) {
      for (const std::uint32_t jobs : {1u, 2u}) {
        const Workload workload{.pattern = pattern,
                                .block_bytes = 256 * kKiB,
                                .depth = 4,
                                .jobs = jobs,
                                .queue = queue};
        SCOPED_TRACE(text_of(workload));
        const TimedSample sample = runner.take(workload, {.bytes = 8 * kMiB, .turn = 1});
        EXPECT_EQ(sample.read_bytes, reads(pattern) ? 8 * kMiB : 0);
        EXPECT_EQ(sample.written_bytes, writes(pattern) ? 8 * kMiB : 0);
        EXPECT_EQ(sample.reads + sample.writes, sample.bytes() / (256 * kKiB));
        EXPECT_EQ(sample.read_latency.count(), sample.reads);
        EXPECT_EQ(sample.write_latency.count(), sample.writes);
        EXPECT_EQ(sample.drive_bytes, std::vector<std::uint64_t>{sample.bytes()});
        EXPECT_GT(sample.seconds, 0);
      }
    }
    runner.verify_all();
    EXPECT_EQ(runner.verification().mismatches, 0u) << runner.verification().first_mismatch;
    EXPECT_EQ(runner.verification().pages, 32 * kMiB / kPageBytes);
    EXPECT_GT(runner.verification().stamps, 0u);
  }
  expect_nothing_left();
}

TEST_F(RunnerTest, SamplesLeaveNoFileAndNoThreadOpen) {
  Runner runner(options());
  runner.lay_out();
  const testing::Held before = testing::what_is_held();
  for (std::uint32_t turn = 0; turn < 8; ++turn)
    runner.take({.pattern = Pattern::kMixed, .depth = 4}, {.bytes = 8 * kMiB, .turn = turn});
  const testing::Held after = testing::what_is_held_with(before.threads);
  EXPECT_EQ(after.files, before.files);
  EXPECT_EQ(after.threads, before.threads);
}

TEST_F(RunnerTest, TwoDrivesMoveAsMuchEach) {
  const testing::TemporaryDirectory second;
  RunnerOptions two = options();
  two.paths.push_back(second.string());
  Runner runner(two);
  runner.lay_out();
  const TimedSample sample = runner.take({.block_bytes = kMiB, .depth = 2}, {.bytes = 8 * kMiB});
  EXPECT_EQ(sample.drive_bytes, (std::vector<std::uint64_t>{8 * kMiB, 8 * kMiB}));
  runner.verify_all();
  EXPECT_EQ(runner.verification().pages, 64 * kMiB / kPageBytes);
  EXPECT_EQ(runner.verification().mismatches, 0u);
}

TEST_F(RunnerTest, ShortTransfersAndMomentaryRefusalsAreContinued) {
  swap::FaultCounts counts;
  RunnerOptions broken = options();
  broken.choose_queue = faulty(
      {.seed = 7, .short_read = 0.3, .short_write = 0.3, .eagain = 0.1, .eintr = 0.1, .late = 0.2},
      counts);
  broken.verify = Verify::kWhole;
  Runner runner(broken);
  runner.lay_out();
  const Workload mixed{.pattern = Pattern::kMixed, .block_bytes = 256 * kKiB, .depth = 8};
  const TimedSample sample = runner.take(mixed, {.bytes = 16 * kMiB});
  EXPECT_EQ(sample.bytes(), 32 * kMiB);
  runner.verify_all();
  EXPECT_GT(counts.shorts, 0u);
  EXPECT_EQ(runner.verification().mismatches, 0u) << runner.verification().first_mismatch;
}

TEST_F(RunnerTest, AFailedRequestIsAnErrorThatNamesFileOffsetAndErrno) {
  swap::FaultCounts counts;
  RunnerOptions broken = options();
  broken.choose_queue = faulty({.fail_request = 5, .fail_errno = EIO}, counts);
  Runner runner(broken);
  try {
    runner.lay_out();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_EQ(error.sys_errno(), EIO);
    EXPECT_NE(std::string(error.what()).find("bench.data failed: EIO"), std::string::npos)
        << error.what();
  }
}

TEST_F(RunnerTest, AFlippedBitIsFoundWhereEveryByteIsCompared) {
  swap::FaultCounts counts;
  RunnerOptions broken = options();
  broken.choose_queue = faulty({.seed = 3, .flip_bit = 0.2}, counts);
  broken.verify = Verify::kWhole;
  Runner runner(broken);
  runner.lay_out();
  runner.take({.block_bytes = kMiB, .depth = 4}, {.bytes = 32 * kMiB});
  EXPECT_EQ(counts.flips, runner.verification().mismatches);
  ASSERT_GT(counts.flips, 0u);
  EXPECT_NE(runner.verification().first_mismatch.find("bench.data at "), std::string::npos);
}

TEST_F(RunnerTest, ADriveThatNeverAnswersEndsInAnErrorByItsDeadline) {
  swap::FaultCounts counts;
  RunnerOptions broken = options();
  broken.choose_queue = faulty({.lost = 1, .skip_requests = 3}, counts);
  broken.deadline_seconds = 0.3;
  Runner runner(broken);
  try {
    runner.lay_out();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIoStalled) << error.what();
  }
}

TEST_F(RunnerTest, PagesThatAnotherProgramWroteAreNotHeldAgainstTheDrive) {
  Runner runner(options());
  runner.lay_out();
  {
    const base::UniqueFd file(::open(runner.targets()[0]->file_path().c_str(), O_WRONLY));
    const std::string other(kPageBytes, 'x');
    ASSERT_EQ(::pwrite(file.get(), other.data(), other.size(), 0), 4096);
  }
  runner.forget(0, 0, kPageBytes);
  runner.verify_all();
  EXPECT_EQ(runner.verification().mismatches, 0u);
  EXPECT_EQ(runner.verification().pages, 32 * kMiB / kPageBytes - 1);
}

TEST_F(RunnerTest, AFileOfTheUsersIsOnlyRead) {
  const std::string file = folder_.string() + "/users.bin";
  std::ofstream(file) << std::string(8 * kMiB, 'u');
  const auto before = fs::last_write_time(file);
  RunnerOptions reading = options();
  reading.paths = {file};
  Runner runner(reading);
  EXPECT_TRUE(runner.targets()[0]->facts().read_only);
  EXPECT_EQ(runner.targets()[0]->size_bytes(), 8 * kMiB);
  const TimedSample sample =
      runner.take({.block_bytes = 256 * kKiB, .depth = 4}, {.bytes = 8 * kMiB});
  EXPECT_EQ(sample.read_bytes, 8 * kMiB);
  EXPECT_EQ(fs::last_write_time(file), before);
}

}  // namespace
}  // namespace headrace::tools::bench_runner_test
