// SPDX-License-Identifier: Apache-2.0
#include "swap/block.hpp"

#include <gtest/gtest.h>

#include <cerrno>

#include "scratch.hpp"

namespace headrace::swap::test {
namespace {
using Next = Verdict::Next;

// A block of 8 pages from the start of its transfer, one attempt of which was answered.
struct Answered : Block {
  explicit Answered(IoKind direction, std::int64_t answer = 0) {
    kind = direction;
    end = 8 * kPage;
    size_bytes = static_cast<std::uint32_t>(end);
    result = answer;
  }
  Verdict again(std::int64_t answer) {
    size_bytes = static_cast<std::uint32_t>(end - at);
    result = answer;
    return judge(*this);
  }
};

TEST(Block, IsWholeWhenAllOfItMoved) {
  Answered block(IoKind::kWrite, 8 * kPage);
  const Verdict verdict = judge(block);
  EXPECT_EQ(verdict.next, Next::kEnd);
  EXPECT_EQ(verdict.error, 0);
  EXPECT_EQ(block.reached, block.end);
}

// Every place where a transfer may stop: on a page, on a sector, inside one, at the first byte.
TEST(Block, GoesOnFromTheLastSectorOrPageBeforeWhereItStopped) {
  for (std::uint64_t stop = 1; stop < 8 * kPage; ++stop) {
    Answered block(IoKind::kWrite, static_cast<std::int64_t>(stop));
    ASSERT_EQ(judge(block).next, Next::kContinue) << stop;
    ASSERT_EQ(block.reached, stop);
    ASSERT_EQ(block.at, stop % 512 == 0 ? stop : stop / kPage * kPage) << stop;
    ASSERT_EQ(block.again(static_cast<std::int64_t>(block.end - block.at)).next, Next::kEnd);
    ASSERT_EQ(block.reached, block.end) << stop;
  }
}

TEST(Block, GoesBackToThePageWhereSectorsAreRefused) {
  Answered block(IoKind::kRead, 4096 + 512);
  judge(block);
  EXPECT_EQ(block.again(-EINVAL).next, Next::kRepeat);
  EXPECT_EQ(block.at, kPage);
  EXPECT_EQ(block.again(-EINVAL).next, Next::kEnd) << "on a page EINVAL means what it says";
}

TEST(Block, ADriveThatMovesOneSectorAtATimeArrives) {
  Answered block(IoKind::kWrite, 512);
  int answers = 1;
  for (Verdict verdict = judge(block); verdict.next != Next::kEnd; ++answers) {
    ASSERT_EQ(verdict.next, Next::kContinue);
    verdict = block.again(512);
  }
  EXPECT_EQ(answers, 64);
  EXPECT_EQ(block.reached, block.end);
}

TEST(Block, ARepeatThatDoesNotGetFurtherIsNoProgress) {
  Answered block(IoKind::kWrite, kPage + 100);
  judge(block);
  for (int i = 0; i < 3; ++i) {
    const Verdict verdict = block.again(100);
    EXPECT_EQ(verdict.next, Next::kRepeat);
    EXPECT_EQ(verdict.error, EIO);
    EXPECT_EQ(block.reached, kPage + 100);
  }
}

TEST(Block, AReadOfNothingIsTheEndOfTheFile) {
  Answered block(IoKind::kRead, 0);
  const Verdict verdict = judge(block);
  EXPECT_EQ(verdict.next, Next::kEnd);
  EXPECT_EQ(verdict.error, 0);
  EXPECT_LT(block.reached, block.end);
}

TEST(Block, EndsWithAnErrorThatNoRepeatHeals) {
  for (const int error : {EIO, EINVAL, ENOSPC, EROFS, EFBIG, EBADF, ESTALE}) {
    Answered block(IoKind::kWrite, -error);
    const Verdict verdict = judge(block);
    EXPECT_EQ(verdict.next, Next::kEnd);
    EXPECT_EQ(verdict.error, error);
  }
}

// The kernel reports a lost write once: a second sync would succeed without the bytes.
TEST(Block, TheFirstAnswerToASyncIsFinal) {
  for (const int error : {0, EIO, EINTR, EAGAIN, EBUSY, EINVAL, ENOSPC, EDQUOT, ECANCELED}) {
    Block block;
    block.kind = IoKind::kSync;
    block.result = -error;
    const Verdict verdict = judge(block);
    EXPECT_EQ(verdict.next, Next::kEnd) << error;
    EXPECT_EQ(verdict.error, error);
  }
  Block block;
  block.kind = IoKind::kSync;
  block.result = 1;
  EXPECT_EQ(judge(block).error, EIO) << "a sync moves no bytes";
}

TEST(Block, IsRepeatedAFewTimesWithGrowingPausesButNotForEver) {
  Answered block(IoKind::kRead);
  const DriveClock::time_point start = DriveClock::now();
  DriveClock::duration last{0}, sum{0};
  int repeats = 0;
  while (schedule_repeat(block, start)) {
    const DriveClock::duration pause = block.not_before - start;
    EXPECT_GE(pause, last);
    last = pause;
    sum += pause;
    ASSERT_LT(++repeats, 1000);
  }
  EXPECT_GT(repeats, 10);
  EXPECT_LT(sum, std::chrono::seconds(1));
  EXPECT_EQ(block.again(512).next, Next::kContinue);
  EXPECT_TRUE(schedule_repeat(block, start)) << "progress gives it all its attempts again";
}
}  // namespace
}  // namespace headrace::swap::test
