// SPDX-License-Identifier: Apache-2.0
// The conformance suite of the I/O queue: what the drive relies on, for every queue alike.
#include "swap/io_queue.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <random>
#include <thread>

#include "limits.hpp"
#include "scratch.hpp"
#include "support/io_queue_fault.hpp"

namespace headrace::swap::test {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;

using Make = std::unique_ptr<IoQueue> (*)(const IoQueueOptions&);
struct Flavour {
  const char* name;
  Make make;
  bool wrapped;
};

class IoQueueTest : public testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override {
    try {
      GetParam().make({.depth = 2});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<IoQueue> make(IoQueueOptions options) const {
    auto queue = GetParam().make(options);
    return GetParam().wrapped ? make_io_queue_fault(std::move(queue), {}, nullptr)
                              : std::move(queue);
  }
};

// Reaps until `count` requests have come back.
void reap_all(IoQueue& queue, std::size_t count) {
  std::array<IoRequest*, 8> done;
  for (std::size_t got = 0; got < count;) {
    ASSERT_EQ(queue.flush(), 0);
    got += queue.reap(done, seconds(60));
  }
}

std::int64_t move(IoQueue& queue, IoRequest request) {
  EXPECT_TRUE(queue.submit(request));
  reap_all(queue, 1);
  return request.result;
}

TEST_P(IoQueueTest, BringsBackWhatWasWritten) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 64 * kPage);
  const auto queue = make({.depth = 4});
  Pages out(16 * kPage), in(16 * kPage);
  fill_pattern(out.span(), 9);
  EXPECT_EQ(move(*queue, {IoKind::kWrite, file.fd(), out.data(), 16 * kPage, 8 * kPage}),
            16 * kPage);
  EXPECT_EQ(move(*queue, {IoKind::kRead, file.fd(), in.data(), 16 * kPage, 8 * kPage}), 16 * kPage);
  EXPECT_EQ(std::memcmp(in.data(), out.data(), in.size()), 0);
  EXPECT_EQ(move(*queue, {IoKind::kRead, file.fd(), in.data(), kPage, 7 * kPage}), kPage);
  EXPECT_EQ(std::memcmp(in.data(), file.contents().data() + 7 * kPage, kPage), 0)
      << "neighbours stay";
}

TEST_P(IoQueueTest, TakesDepthRequestsAndNoMore) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 16 * kPage);
  const auto queue = make({.depth = 3});
  EXPECT_EQ(queue->depth(), 3u);
  Pages in(4 * kPage);
  std::array<IoRequest, 4> requests;
  for (std::uint32_t i = 0; i < 4; ++i) {
    requests[i] = {IoKind::kRead, file.fd(), in.data() + i * kPage, kPage, i * kPage};
    EXPECT_EQ(queue->submit(requests[i]), i < 3);
  }
  EXPECT_EQ(queue->in_flight(), 3u);
  reap_all(*queue, 3);
  EXPECT_EQ(queue->in_flight(), 0u);
  EXPECT_TRUE(queue->submit(requests[3]));
  reap_all(*queue, 1);
  EXPECT_EQ(std::memcmp(in.data(), file.contents().data(), in.size()), 0);
}

TEST_P(IoQueueTest, ReportsAShortReadAtTheEndOfTheFileAndNothingPastIt) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 2 * kPage + 1000);
  const auto queue = make({.depth = 1});
  Pages in(4 * kPage);
  EXPECT_EQ(move(*queue, {IoKind::kRead, file.fd(), in.data(), 2 * kPage, kPage}), kPage + 1000);
  EXPECT_EQ(move(*queue, {IoKind::kRead, file.fd(), in.data(), kPage, 8 * kPage}), 0);
}

TEST_P(IoQueueTest, ReportsTheErrnoOfARefusedRequest) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 2 * kPage);
  const auto queue = make({.depth = 2});
  Pages memory(kPage);
  const int read_only = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(move(*queue, {IoKind::kWrite, read_only, memory.data(), kPage, 0}), -EBADF);
  ::close(read_only);
  EXPECT_EQ(move(*queue, {IoKind::kRead, read_only, memory.data(), kPage, 0}), -EBADF);
  EXPECT_EQ(move(*queue, {IoKind::kRead, file.fd(), memory.data(), kPage, 0}), kPage)
      << "still serves";
}

TEST_P(IoQueueTest, ReportsAShortWriteAsTheKernelMadeIt) {
  const ScratchDirectory scratch;
  TestFile file(scratch, kPage);
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4 * kPage, 4 * kPage};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto queue = make({.depth = 1});
    Pages out(8 * kPage);
    if (move(*queue, {IoKind::kWrite, file.fd(), out.data(), 8 * kPage, 0}) != 4 * kPage) return 1;
    return move(*queue, {IoKind::kWrite, file.fd(), out.data(), kPage, 4 * kPage}) == -EFBIG ? 0
                                                                                             : 2;
  });
  EXPECT_EQ(status, 0);
}

TEST_P(IoQueueTest, ReapReturnsEmptyHandedAtItsTimeout) {
  const auto queue = make({.depth = 2});
  std::array<IoRequest*, 2> done;
  EXPECT_EQ(queue->reap(done, milliseconds(0)), 0u);
  EXPECT_EQ(queue->reap(done, milliseconds(2)), 0u);
  EXPECT_EQ(queue->reap(done, milliseconds(2)), 0u);
}

// libaio answers such a look from memory that the kernel shares, without asking it.
TEST_P(IoQueueTest, ALookWithoutAWaitFindsWhatHasCompleted) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 4 * kPage);
  const auto queue = make({.depth = 2});
  Pages in(4 * kPage);
  for (int round = 0; round < 20; ++round) {
    std::array<IoRequest, 2> requests{
        IoRequest{IoKind::kRead, file.fd(), in.data(), kPage, 0},
        IoRequest{IoKind::kRead, file.fd(), in.data() + kPage, 2 * kPage, kPage}};
    for (IoRequest& request : requests) ASSERT_TRUE(queue->submit(request));
    ASSERT_EQ(queue->flush(), 0);
    std::array<IoRequest*, 2> done;
    const auto until = std::chrono::steady_clock::now() + seconds(60);
    for (std::size_t got = 0; got < 2;) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      got += queue->reap(done, milliseconds(0));
    }
    EXPECT_EQ(requests[0].result, kPage);
    EXPECT_EQ(requests[1].result, 2 * kPage);
    EXPECT_EQ(queue->reap(done, milliseconds(0)), 0u);
  }
  EXPECT_EQ(std::memcmp(in.data(), file.contents().data(), 3 * kPage), 0);
}

TEST_P(IoQueueTest, AWakeFromAnotherThreadEndsAWait) {
  const auto queue = make({.depth = 2});
  for (int round = 0; round < 50; ++round) {
    std::thread other([&] { queue->wake(); });
    std::array<IoRequest*, 2> done;
    EXPECT_EQ(queue->reap(done, std::chrono::hours(10)), 0u);
    other.join();
  }
}

TEST_P(IoQueueTest, AWakeBeforeTheWaitIsNotLost) {
  const auto queue = make({.depth = 2});
  std::array<IoRequest*, 2> done;
  queue->wake();
  EXPECT_EQ(queue->reap(done, milliseconds(0)), 0u);
  queue->wake();
  EXPECT_EQ(queue->reap(done, std::chrono::hours(10)), 0u);
}

TEST_P(IoQueueTest, ServesRegisteredAndOtherMemoryAndFiles) {
  const ScratchDirectory scratch, elsewhere;
  TestFile file(scratch, 8 * kPage), other(elsewhere, 8 * kPage, 2);
  Pages registered(4 * kPage), plain(4 * kPage);
  const std::span<std::byte> buffer = registered.span();
  const int fd = file.fd();
  const auto queue = make({.depth = 2, .buffers = {&buffer, 1}, .files = {&fd, 1}});
  for (Pages* memory : {&registered, &plain}) {
    for (TestFile* from : {&file, &other}) {
      EXPECT_EQ(move(*queue, {IoKind::kRead, from->fd(), memory->data(), 2 * kPage, kPage}),
                2 * kPage);
      EXPECT_EQ(std::memcmp(memory->data(), from->contents().data() + kPage, 2 * kPage), 0);
      fill_pattern(memory->span(), 77);
      EXPECT_EQ(move(*queue, {IoKind::kWrite, from->fd(), memory->data(), 2 * kPage, kPage}),
                2 * kPage);
      EXPECT_EQ(std::memcmp(memory->data(), from->now_on_disk().data() + kPage, 2 * kPage), 0);
      EXPECT_EQ(move(*queue, {IoKind::kWrite, from->fd(), memory->data(), 0, kPage}), 0);
      std::memcpy(memory->data(), from->contents().data() + kPage, 2 * kPage);
      EXPECT_EQ(move(*queue, {IoKind::kWrite, from->fd(), memory->data(), 2 * kPage, kPage}),
                2 * kPage);
    }
  }
}

TEST_P(IoQueueTest, SyncsAFileBesideItsReadsAndWrites) {
  const ScratchDirectory scratch, elsewhere;
  TestFile file(scratch, 8 * kPage), other(elsewhere, 8 * kPage, 2);
  Pages memory(4 * kPage);
  const std::span<std::byte> buffer = memory.span();
  const int registered = file.fd();
  const auto queue = make({.depth = 4, .buffers = {&buffer, 1}, .files = {&registered, 1}});
  fill_pattern(memory.span().first(2 * kPage), 5);
  for (const int fd : {file.fd(), other.fd()}) {
    std::array<IoRequest, 4> requests{
        IoRequest{IoKind::kWrite, fd, memory.data(), 2 * kPage, 0},
        IoRequest{.kind = IoKind::kSync, .fd = fd, .result = 1},
        IoRequest{IoKind::kRead, fd, memory.data() + 2 * kPage, 2 * kPage, 4 * kPage},
        IoRequest{.kind = IoKind::kSync, .fd = fd, .result = 1}};
    for (IoRequest& request : requests) ASSERT_TRUE(queue->submit(request));
    reap_all(*queue, requests.size());
    EXPECT_EQ(requests[0].result, 2 * kPage);
    EXPECT_EQ(requests[1].result, 0);
    EXPECT_EQ(requests[2].result, 2 * kPage);
    EXPECT_EQ(requests[3].result, 0);
  }
  EXPECT_EQ(std::memcmp(file.now_on_disk().data(), memory.data(), 2 * kPage), 0);
}

// The kernel cannot sync a pipe. No queue fails a read or write of no bytes there with EINVAL.
TEST_P(IoQueueTest, ReportsTheErrnoOfAFailedSync) {
  const ScratchDirectory scratch;
  TestFile file(scratch, kPage);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const auto queue = make({.depth = 2, .files = ends});
  Pages memory(kPage);
  for (const int end : ends) EXPECT_EQ(move(*queue, {.kind = IoKind::kSync, .fd = end}), -EINVAL);
  EXPECT_NE(move(*queue, {IoKind::kWrite, ends[1], memory.data(), 0, 0}), -EINVAL);
  EXPECT_EQ(move(*queue, {.kind = IoKind::kSync, .fd = -1}), -EBADF);
  EXPECT_EQ(move(*queue, {.kind = IoKind::kSync, .fd = file.fd()}), 0) << "still serves";
  for (const int end : ends) ::close(end);
}

TEST_P(IoQueueTest, KeepsEveryRequestApartOverRandomTraffic) {
  const ScratchDirectory scratch;
  constexpr std::uint32_t kSlots = 7, kPagesInFile = 64;
  TestFile file(scratch, kPagesInFile * kPage);
  std::mt19937 random(5);
  for (const std::uint32_t batch : {1u, 2u, 16u}) {
    const auto queue = make({.depth = kSlots, .submit_batch = batch});
    Pages memory(kSlots * 4 * kPage);
    std::array<IoRequest, kSlots> requests;
    std::array<IoRequest*, 3> done;
    std::size_t reaped = 0;
    const auto send = [&](IoRequest& request) {
      const std::uint32_t pages = 1 + random() % 4;
      const std::uint32_t at = random() % (kPagesInFile - pages + 1);
      const auto slot = static_cast<std::uint32_t>(&request - requests.data());
      request = {IoKind::kRead, file.fd(), memory.data() + slot * 4 * kPage,
                 static_cast<std::uint32_t>(pages * kPage), at * kPage};
      ASSERT_TRUE(queue->submit(request));
    };
    for (IoRequest& request : requests) send(request);
    while (reaped < 400) {
      ASSERT_EQ(queue->flush(), 0);
      const std::size_t count = queue->reap(done, seconds(60));
      for (std::size_t i = 0; i < count; ++i) {
        IoRequest& request = *done[i];
        ASSERT_EQ(request.result, request.size_bytes);
        ASSERT_EQ(std::memcmp(request.data, file.contents().data() + request.offset_bytes,
                              request.size_bytes),
                  0);
        send(request);
      }
      reaped += count;
    }
    reap_all(*queue, kSlots);
    EXPECT_EQ(queue->in_flight(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Queues, IoQueueTest,
                         testing::Values(Flavour{"uring", make_io_queue_uring, false},
                                         Flavour{"aio", make_io_queue_aio, false},
                                         Flavour{"threads", make_io_queue_threads, false},
                                         Flavour{"fault_over_uring", make_io_queue_uring, true},
                                         Flavour{"fault_over_aio", make_io_queue_aio, true},
                                         Flavour{"fault_over_threads", make_io_queue_threads,
                                                 true}),
                         [](const auto& info) { return info.param.name; });

// What the kernel says to io_submit() when the queue is in use. libaio returns it and leaves errno
// alone, so that what stood there before must not be taken for the answer.
TEST(AioQueue, TellsWhatTheKernelSaysWhateverErrnoHeld) {
  constexpr int kNoQueue = 77;
  const ScratchDirectory scratch;
  TestFile file(scratch, 4 * kPage);
  for (const int error : {EAGAIN, EPERM, EIO}) {
    const int status = in_child([&] {
      std::unique_ptr<IoQueue> queue;
      try {
        queue = make_io_queue_aio({.depth = 2});
      } catch (const Error&) {
        return kNoQueue;
      }
      Pages in(2 * kPage);
      IoRequest first{IoKind::kRead, file.fd(), in.data(), kPage, 0};
      IoRequest second{IoKind::kRead, file.fd(), in.data() + kPage, kPage, kPage};
      if (!queue->submit(first) || !queue->submit(second)) return 1;
      if (!forbid(SYS_io_submit, error)) return kNoQueue;
      errno = error == EAGAIN ? EPERM : EAGAIN;
      if (error == EAGAIN) {  // there is no room: both are kept
        if (queue->flush() != EAGAIN || queue->flush() != EAGAIN) return 2;
        std::array<IoRequest*, 2> done;
        return queue->reap(done, milliseconds(0)) == 0 && queue->in_flight() == 2 ? 0 : 3;
      }
      reap_all(*queue, 2);
      if (queue->in_flight() != 0) return 4;
      return first.result == -error && second.result == -error ? 0 : 5;
    });
    if (status == kNoQueue) GTEST_SKIP() << "no Linux AIO here, or no seccomp filter";
    EXPECT_EQ(status, 0) << error;
  }
}

TEST(AioQueue, SyncsItselfWhereTheCommandIsRefused) {
  constexpr int kNoQueue = 77;
  const ScratchDirectory scratch;
  TestFile file(scratch, kPage);
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP, EIO, EPERM}) {
    const bool refused = error != EIO && error != EPERM;
    const int status = in_child([&] {
      std::unique_ptr<IoQueue> queue;
      try {
        queue = make_io_queue_aio({.depth = 2});
      } catch (const Error&) {
        return kNoQueue;
      }
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0 || !forbid(SYS_io_submit, error)) return kNoQueue;
      const auto sync = [&](int fd) { return move(*queue, {.kind = IoKind::kSync, .fd = fd}); };
      if (sync(file.fd()) != (refused ? 0 : -error)) return 1;
      if (sync(ends[0]) != (refused ? -EINVAL : -error)) return 2;  // fdatasync's own answer
      Pages in(kPage);
      return move(*queue, {IoKind::kRead, file.fd(), in.data(), kPage, 0}) == -error ? 0 : 3;
    });
    if (status == kNoQueue) GTEST_SKIP() << "no Linux AIO here, or no seccomp filter";
    EXPECT_EQ(status, 0) << error;
  }
}

// The ring of this process; there is one.
int ring_fd() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) == "anon_inode:[io_uring]")
      return std::stoi(entry.path().filename());
  }
  return -1;
}

// What a kernel does that cannot map registered memory: its table is taken away under the queue.
TEST(UringQueue, GoesWithoutRegisteredMemoryOnceThatHasFailed) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 8 * kPage);
  Pages memory(8 * kPage);
  const std::span<std::byte> buffer = memory.span();
  std::unique_ptr<IoQueue> queue;
  try {
    queue = make_io_queue_uring({.depth = 2, .buffers = {&buffer, 1}});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const IoRequest read{IoKind::kRead, file.fd(), memory.data(), kPage, kPage};
  EXPECT_EQ(move(*queue, read), kPage);
  constexpr unsigned kUnregisterBuffers = 1;
  if (::syscall(SYS_io_uring_register, ring_fd(), kUnregisterBuffers, nullptr, 0) != 0)
    GTEST_SKIP() << "memory could not be registered here";
  EXPECT_EQ(move(*queue, read), -EFAULT) << "reported: the drive repeats it";
  EXPECT_EQ(move(*queue, read), kPage);
  EXPECT_EQ(std::memcmp(memory.data(), file.contents().data() + kPage, kPage), 0);
  EXPECT_EQ(move(*queue, {IoKind::kWrite, file.fd(), memory.data(), kPage, 4 * kPage}), kPage);
}

// The queue, or null where there is none to be had.
std::unique_ptr<IoQueue> uring_over(const std::span<std::byte>& buffer, const int& fd,
                                    RegisterBuffers wanted) {
  try {
    return make_io_queue_uring(
        {.depth = 2, .buffers = {&buffer, 1}, .files = {&fd, 1}, .register_buffers = wanted});
  } catch (const Error&) {
    return nullptr;
  }
}

TEST(UringQueue, SaysWhatItHasRegisteredAndRegistersNothingUnasked) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 8 * kPage);
  Pages memory(8 * kPage);
  const int fd = file.fd();
  for (const RegisterBuffers wanted : {RegisterBuffers::kAuto, RegisterBuffers::kOff}) {
    const auto queue = uring_over(memory.span(), fd, wanted);
    if (!queue) GTEST_SKIP() << "no io_uring here";
    const Registered registered = queue->registered();
    const bool asked = wanted == RegisterBuffers::kAuto;
    if (asked && !registered.refused.empty()) GTEST_SKIP() << registered.refused;
    EXPECT_EQ(text_of(registered), asked ? "registered buffers and files" : "");
    EXPECT_EQ(registered.refused, "");
    EXPECT_EQ(move(*queue, {IoKind::kRead, fd, memory.data(), 2 * kPage, kPage}), 2 * kPage);
    EXPECT_EQ(std::memcmp(memory.data(), file.contents().data() + kPage, 2 * kPage), 0);
  }
}

TEST(UringQueue, AFailedSyncSaysNothingAboutRegisteredMemory) {
  Pages memory(2 * kPage);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  {
    const auto queue = uring_over(memory.span(), ends[0], RegisterBuffers::kAuto);
    if (!queue || !queue->registered().buffers) GTEST_SKIP() << "no registered memory here";
    EXPECT_EQ(move(*queue, {IoKind::kSync, ends[0], memory.data(), 0, 0}), -EINVAL);
    EXPECT_TRUE(queue->registered().buffers);
  }
  for (const int end : ends) ::close(end);
}

TEST(UringQueue, ServesWithoutRegisteredMemoryWhereTheLimitOnLockedMemoryIsSmall) {
  constexpr int kNoRing = 77;
  const ScratchDirectory scratch;
  TestFile file(scratch, 8 * kPage);
  const int fd = file.fd();
  const int status = in_child([&] {
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_MEMLOCK, &limit);
    // Root may lock without limit.
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) return kNoRing;
    Pages memory(4 << 20);
    const auto queue = uring_over(memory.span(), fd, RegisterBuffers::kAuto);
    if (!queue) return kNoRing;
    const Registered registered = queue->registered();
    if (registered.buffers || !registered.files) return 1;
    const std::string& text = registered.refused;
    for (const char* part :
         {"registers no buffers: ENOMEM", "the limit on locked memory is 1 MiB", "'ulimit -l'"}) {
      if (text.find(part) == std::string::npos) return 2;
    }
    if (move(*queue, {IoKind::kRead, fd, memory.data(), 2 * kPage, kPage}) != 2 * kPage) return 3;
    return std::memcmp(memory.data(), file.contents().data() + kPage, 2 * kPage) == 0 ? 0 : 4;
  });
  if (status == kNoRing) GTEST_SKIP() << "no io_uring here under a limit of 1 MiB";
  EXPECT_EQ(status, 0);
}

TEST(ThreadQueue, ItsThreadsAreNamedAndGoneAtItsEnd) {
  {
    const auto queue = make_io_queue_threads({.depth = 5});
    std::array<IoRequest*, 1> done;
    // A thread names itself when it first runs.
    while (threads_called("headrace-pio") < 5) queue->reap(done, milliseconds(1));
    EXPECT_EQ(threads_called("headrace-pio"), 5u);
  }
  EXPECT_EQ(threads_called("headrace-pio"), 0u);
}
}  // namespace
}  // namespace headrace::swap::test
