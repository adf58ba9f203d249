// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "scratch.hpp"
#include "support/io_queue_fault.hpp"
#include "swap/io_queue.hpp"

namespace headrace::swap::test {
namespace {
constexpr std::int64_t kSize = 8 * 4096;

// Completes every request where it is submitted, so that the order is the wrapper's doing alone.
class InOrderQueue final : public IoQueue {
 public:
  explicit InOrderQueue(std::uint32_t depth) : depth_(depth) {}
  const char* name() const noexcept override { return "in order"; }
  std::uint32_t depth() const noexcept override { return depth_; }
  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(completed_.size());
  }
  bool submit(IoRequest& request) noexcept override {
    if (completed_.size() == depth_) return false;
    request.result = ::pread(request.fd, request.data, request.size_bytes,
                             static_cast<off_t>(request.offset_bytes));
    completed_.push_back(&request);
    return true;
  }
  int flush() noexcept override { return 0; }
  std::size_t reap(std::span<IoRequest*> done, std::chrono::nanoseconds) noexcept override {
    const std::size_t count = std::min(done.size(), completed_.size());
    std::copy_n(completed_.begin(), count, done.begin());
    completed_.erase(completed_.begin(), completed_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void wake() noexcept override {}

 private:
  std::uint32_t depth_;
  std::vector<IoRequest*> completed_;
};

class FaultQueueTest : public testing::Test {
 protected:
  // The results of `count` alternating reads and writes, one after the other.
  std::vector<std::int64_t> results(const FaultPlan& plan, std::size_t count) {
    const auto queue = make_io_queue_fault(make_io_queue_threads({.depth = 2}), plan, &counts_);
    std::vector<std::int64_t> results;
    for (std::size_t i = 0; i < count; ++i) {
      IoRequest request{i % 2 == 0 ? IoKind::kRead : IoKind::kWrite, file_.fd(), memory_.data(),
                        kSize, 0};
      EXPECT_TRUE(queue->submit(request));
      std::array<IoRequest*, 1> done;
      while (queue->flush() != 0) {
      }
      while (queue->reap(done, std::chrono::seconds(60)) == 0) {
      }
      results.push_back(request.result);
    }
    return results;
  }
  // Only reads (even) or writes (odd) of results().
  static std::map<std::int64_t, int> tally(const std::vector<std::int64_t>& results,
                                           std::size_t first) {
    std::map<std::int64_t, int> tally;
    for (std::size_t i = first; i < results.size(); i += 2) ++tally[results[i]];
    return tally;
  }

  ScratchDirectory scratch_;
  TestFile file_{scratch_, kSize};
  Pages memory_{kSize};
  FaultCounts counts_;
};

TEST_F(FaultQueueTest, TheSameSeedGivesTheSameFaults) {
  const FaultPlan plan{
      .seed = 3, .short_read = .3, .short_write = .3, .eio_read = .1, .eagain = .1, .enospc = .1};
  const auto first = results(plan, 100);
  EXPECT_EQ(results(plan, 100), first);
  FaultPlan other = plan;
  other.seed = 4;
  EXPECT_NE(results(other, 100), first);
}

TEST_F(FaultQueueTest, WithoutAPlanNothingHappens) {
  for (const std::int64_t result : results({}, 50)) EXPECT_EQ(result, kSize);
  EXPECT_EQ(counts_.requests, 50u);
  EXPECT_EQ(counts_.errors + counts_.shorts + counts_.flips + counts_.late + counts_.lost, 0u);
}

TEST_F(FaultQueueTest, EachErrorComesWhereItsChanceSays) {
  EXPECT_EQ(tally(results({.eio_read = 1}, 20), 0), (std::map<std::int64_t, int>{{-EIO, 10}}));
  EXPECT_EQ(tally(results({.eio_read = 1}, 20), 1), (std::map<std::int64_t, int>{{kSize, 10}}));
  EXPECT_EQ(tally(results({.eio_write = 1}, 20), 1), (std::map<std::int64_t, int>{{-EIO, 10}}));
  EXPECT_EQ(tally(results({.enospc = 1}, 20), 0), (std::map<std::int64_t, int>{{kSize, 10}}));
  EXPECT_EQ(tally(results({.enospc = 1}, 20), 1), (std::map<std::int64_t, int>{{-ENOSPC, 10}}));
  EXPECT_EQ(tally(results({.eagain = 1}, 20), 0), (std::map<std::int64_t, int>{{-EAGAIN, 10}}));
  EXPECT_EQ(tally(results({.eintr = 1}, 20), 1), (std::map<std::int64_t, int>{{-EINTR, 10}}));
  EXPECT_EQ(counts_.errors, 5 * 10u + 2 * 20u);
}

TEST_F(FaultQueueTest, ShortTransfersMissWholeSectorsDownToNothing) {
  const auto all = results({.short_read = 1, .short_write = 1}, 400);
  std::int64_t least = kSize;
  for (const std::int64_t result : all) {
    EXPECT_LT(result, kSize);
    EXPECT_EQ(result % 512, 0);
    least = std::min(least, result);
  }
  EXPECT_EQ(least, 0);
  EXPECT_EQ(counts_.shorts, 400u);
}

TEST_F(FaultQueueTest, FlipsExactlyOneBitOfARead) {
  results({.flip_bit = 1}, 1);
  int bits = 0;
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    bits += std::popcount(static_cast<unsigned>(memory_.data()[i] ^ file_.contents()[i]));
  }
  EXPECT_EQ(bits, 1);
  EXPECT_EQ(counts_.flips, 1u);
}

TEST_F(FaultQueueTest, FailsTheRequestThatIsNumbered) {
  const auto all = results({.fail_request = 3, .fail_errno = EREMOTEIO}, 6);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i == 2 ? -EREMOTEIO : kSize);
  const auto writes = results({.fail_request = 3, .fail_errno = ENOSPC, .only_writes = true}, 8);
  for (std::size_t i = 0; i < writes.size(); ++i) EXPECT_EQ(writes[i], i == 5 ? -ENOSPC : kSize);
}

TEST_F(FaultQueueTest, FailsSyncsAloneByChanceOrByNumber) {
  const auto syncs = [this](const FaultPlan& plan) {
    const auto queue = make_io_queue_fault(make_io_queue_threads({.depth = 2}), plan, &counts_);
    std::vector<std::int64_t> results;
    for (int i = 0; i < 4; ++i) {
      std::array<IoRequest, 2> both{
          IoRequest{IoKind::kWrite, file_.fd(), memory_.data(), kSize, 0},
          IoRequest{.kind = IoKind::kSync, .fd = file_.fd(), .result = 1}};
      for (IoRequest& request : both) EXPECT_TRUE(queue->submit(request));
      std::array<IoRequest*, 2> done;
      for (std::size_t got = 0; got < 2;) got += queue->reap(done, std::chrono::seconds(60));
      EXPECT_EQ(both[0].result, kSize);
      results.push_back(both[1].result);
    }
    return results;
  };
  using Results = std::vector<std::int64_t>;
  EXPECT_EQ(syncs({}), (Results{0, 0, 0, 0}));
  EXPECT_EQ(syncs({.eio_sync = 1}), (Results{-EIO, -EIO, -EIO, -EIO}));
  EXPECT_EQ(syncs({.fail_sync = 2, .sync_errno = EINTR}), (Results{0, -EINTR, 0, 0}));
  EXPECT_EQ(syncs({.eio_read = 1, .enospc = 0, .flip_bit = 1}), (Results{0, 0, 0, 0}));
  EXPECT_EQ(counts_.syncs, 16u);
  EXPECT_EQ(counts_.requests, 32u);
  EXPECT_EQ(counts_.errors, 5u);
}

TEST_F(FaultQueueTest, FailsRegisteredMemoryUntilThatIsKnown) {
  const auto all = results({.registered_errno = EFAULT, .skip_requests = 2}, 5);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i == 2 ? -EFAULT : kSize);
}

TEST_F(FaultQueueTest, LetsTheFirstRequestsPass) {
  const auto all = results({.eio_read = 1, .eio_write = 1, .skip_requests = 4}, 6);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i < 4 ? kSize : -EIO);
}

TEST_F(FaultQueueTest, LateOnesComeOutOfOrderAndLostOnesNever) {
  const auto queue = make_io_queue_fault(std::make_unique<InOrderQueue>(8u),
                                         {.seed = 4, .late = .6, .lost = .2}, &counts_);
  std::array<IoRequest, 8> requests;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    IoRequest& request = requests[i];
    request = {IoKind::kRead, file_.fd(), memory_.data() + i * 4096, 4096, 0};
    ASSERT_TRUE(queue->submit(request));
  }
  ASSERT_GT(counts_.late, 0u);
  ASSERT_GT(counts_.lost, 0u);
  ASSERT_GT(8 - counts_.lost, counts_.late);  // some are neither
  std::vector<IoRequest*> order;
  std::array<IoRequest*, 8> done;
  while (order.size() < 8 - counts_.lost) {
    const std::size_t count = queue->reap(done, std::chrono::seconds(60));
    // The first reap meets them all: those that are not late come at once, the others after them.
    if (order.empty()) {
      EXPECT_EQ(count, 8 - counts_.lost - counts_.late);
    }
    order.insert(order.end(), done.begin(), done.begin() + static_cast<std::ptrdiff_t>(count));
  }
  EXPECT_EQ(queue->reap(done, std::chrono::milliseconds(5)), 0u);
  EXPECT_EQ(queue->in_flight(), counts_.lost);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST(FaultQueue, RefusesToBeSetUpWithTheErrnoAsked) {
  try {
    make_io_queue_fault(make_io_queue_threads({.depth = 1}), {.setup_errno = ENOSYS}, nullptr);
    FAIL() << "was set up";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_EQ(error.sys_errno(), ENOSYS);
  }
}
}  // namespace
}  // namespace headrace::swap::test
