// SPDX-License-Identifier: Apache-2.0
// Which queue is chosen where others are refused: by a hook, by a real seccomp filter, by real
// limits.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "limits.hpp"
#include "scratch.hpp"
#include "support/io_queue_fault.hpp"
#include "swap/io_queue.hpp"

namespace headrace::swap::test {
namespace {
bool ring_works_here() {
  try {
    make_io_queue_uring({.depth = 2});
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool aio_works_here() {
  try {
    make_io_queue_aio({.depth = 2});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A queue that fails as the plan says.
IoQueueFactory failing(const FaultPlan& plan) {
  return [plan](const IoQueueOptions& options) {
    return make_io_queue_fault(make_io_queue_threads(options), plan, nullptr);
  };
}

bool moves_data(IoQueue& queue, const TestFile& file) {
  Pages in(4096);
  IoRequest request{IoKind::kRead, file.fd(), in.data(), 4096, 0};
  IoRequest* done = nullptr;
  if (!queue.submit(request) || queue.flush() != 0) return false;
  while (queue.reap({&done, 1}, std::chrono::seconds(60)) == 0) {
  }
  return request.result == 4096 && std::memcmp(in.data(), file.contents().data(), 4096) == 0;
}

class ChooseIoQueue : public testing::Test {
 protected:
  ChosenIoQueue choose(IoQueueKind kind, const FaultPlan& plan) {
    const int fd = file_.fd();
    return choose_io_queue(kind, {.depth = 2, .files = {&fd, 1}},
                           {.uring = failing(plan), .aio = failing(plan)});
  }
  void expect_threads_because(const FaultPlan& plan, const std::string& reason) {
    const ChosenIoQueue chosen = choose(IoQueueKind::kAuto, plan);
    EXPECT_STREQ(chosen.queue->name(), "threads");
    EXPECT_NE(chosen.reason.find(reason), std::string::npos) << chosen.reason;
    EXPECT_EQ(chosen.reason.find('\n'), std::string::npos);
    EXPECT_TRUE(chosen.reason.ends_with("; threads do the I/O instead")) << chosen.reason;
    EXPECT_TRUE(moves_data(*chosen.queue, file_));
    for (const IoQueueKind kind : {IoQueueKind::kUring, IoQueueKind::kAio})
      EXPECT_THROW(choose(kind, plan), Error) << "named, it is that or nothing";
  }
  ScratchDirectory scratch_;
  TestFile file_{scratch_, 16384};
};

TEST_F(ChooseIoQueue, TakesTheRingWhereItWorks) {
  const ChosenIoQueue chosen = choose(IoQueueKind::kAuto, {});
  EXPECT_EQ(chosen.reason, "");
  EXPECT_TRUE(moves_data(*chosen.queue, file_));
}

TEST_F(ChooseIoQueue, FallsBackToThreadsWhenTheRingIsRefused) {
  expect_threads_because({.setup_errno = EPERM}, "EPERM");
  expect_threads_because({.setup_errno = ENOSYS}, "ENOSYS");
  expect_threads_because({.setup_errno = ENOMEM}, "locked memory");
}

TEST_F(ChooseIoQueue, DoesNotTrustARingThatMovesNoBlock) {
  expect_threads_because({.eio_read = 1}, "EIO");
  expect_threads_because({.short_read = 1}, "short");
  expect_threads_because({.flip_bit = 1}, "other bytes");
}

TEST_F(ChooseIoQueue, GivesUpOnARingThatNeverAnswers) {
  // In a child: the ring that is given up on stays, with its threads.
  const int status = in_child([&] {
    const ChosenIoQueue chosen = choose(IoQueueKind::kAuto, {.lost = 1});
    if (chosen.reason.find("did not arrive") == std::string::npos) return 1;
    return moves_data(*chosen.queue, file_) ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(ChooseIoQueue, ForgivesAFewBusyAnswers) {
  EXPECT_EQ(
      choose(IoQueueKind::kAuto, {.seed = 5, .eagain = .4, .eintr = .2, .flush_eagain = .3}).reason,
      "");
}

TEST_F(ChooseIoQueue, ProvesItselfOnMemoryWhenItIsGivenNoFile) {
  const ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kAuto, {.depth = 1});
  EXPECT_EQ(chosen.reason.empty(), std::string(chosen.queue->name()) == "uring") << chosen.reason;
  EXPECT_TRUE(moves_data(*chosen.queue, file_));
}

TEST_F(ChooseIoQueue, TakesThreadsByNameWithoutAReason) {
  const ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kThreads, {.depth = 1});
  EXPECT_STREQ(chosen.queue->name(), "threads");
  EXPECT_EQ(chosen.reason, "");
}

TEST_F(ChooseIoQueue, TakesLinuxAioForDirectFilesWhereTheRingIsRefused) {
  if (!aio_works_here()) GTEST_SKIP() << "there is no Linux AIO here";
  const int direct = ::open(file_.path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (direct < 0) GTEST_SKIP() << "there is no O_DIRECT here";
  const int cached = ::open(file_.path().c_str(), O_RDWR | O_CLOEXEC);
  for (const int fd : {direct, cached}) {
    const ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kAuto, {.files = {&fd, 1}},
                                                 {.uring = failing({.setup_errno = EPERM})});
    EXPECT_STREQ(chosen.queue->name(), fd == direct ? "aio" : "threads");
    EXPECT_NE(chosen.reason.find("EPERM"), std::string::npos) << chosen.reason;
    EXPECT_TRUE(chosen.reason.ends_with(
        fd == direct ? "; Linux AIO does the I/O instead"
                     : "; Linux AIO needs O_DIRECT; threads do the I/O instead"))
        << chosen.reason;
    EXPECT_TRUE(moves_data(*chosen.queue, file_));
  }
  ::close(direct);
  ::close(cached);
  EXPECT_STREQ(choose_io_queue(IoQueueKind::kAio, {}).queue->name(), "aio");
}

// libaio returns errors and leaves errno alone: what stood in errno before is in no message.
TEST_F(ChooseIoQueue, SaysWhyThereIsNoLinuxAioUnderARealSeccompFilter) {
  if (!aio_works_here()) GTEST_SKIP() << "Linux AIO is refused here before any filter";
  struct Case {
    long call;
    int error;
    std::vector<std::string> parts;
  };
  for (const Case& c : std::vector<Case>{
           {SYS_io_setup, EPERM, {"io_setup was refused: EPERM", "io_setup, io_submit"}},
           {SYS_io_setup, ENOSYS, {"io_setup was refused: ENOSYS", "no asynchronous I/O"}},
           {SYS_io_setup, EAGAIN, {"io_setup was refused: EAGAIN", "fs.aio-max-nr"}},
           {SYS_io_submit, EPERM, {"io_submit of a poll was refused: EPERM", "io_submit"}},
           {SYS_io_submit, EINVAL, {"io_submit of a poll was refused: EINVAL", "from 4.18 on"}}}) {
    const int status = in_child([&] {
      if (!forbid(c.call, c.error)) return 77;
      errno = EXDEV;
      try {
        choose_io_queue(IoQueueKind::kAio, {.depth = 2});
        return 1;
      } catch (const Error& refused) {
        if (refused.sys_errno() != c.error) return 2;
        for (const std::string& part : c.parts)
          if (std::string(refused.what()).find(part) == std::string::npos) return 3;
        return 0;
      }
    });
    if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
    EXPECT_EQ(status, 0) << c.parts[0];
  }
}

// A library that a build has not is no refusal by the machine: there is no errno, and threads
// serve.
TEST_F(ChooseIoQueue, NamesTheLibraryThatThisBuildIsWithout) {
  const auto expect_named = [&](IoQueueKind kind, bool built, const std::string& words) {
    try {
      choose_io_queue(kind, {.depth = 2});
      EXPECT_TRUE(built);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnsupported);
      EXPECT_EQ(std::string(error.what()).starts_with(words), !built) << error.what();
      EXPECT_EQ(error.sys_errno() == 0, !built) << error.what();
    }
  };
  expect_named(IoQueueKind::kUring, built_with_liburing(), "this build has no io_uring: ");
  expect_named(IoQueueKind::kAio, built_with_libaio(), "this build has no Linux AIO: ");
  const ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kAuto, {.depth = 2});
  EXPECT_TRUE(moves_data(*chosen.queue, file_));
  if (!built_with_liburing() && !built_with_libaio()) {
    EXPECT_STREQ(chosen.queue->name(), "threads");
  }
}

TEST_F(ChooseIoQueue, FallsBackUnderARealSeccompFilterAndSaysSo) {
  if (!ring_works_here()) GTEST_SKIP() << "io_uring is refused here before any filter";
  const bool aio = aio_works_here();
  for (const int error : {EPERM, ENOSYS}) {
    const int status = in_child([&] {
      if (!forbid(SYS_io_uring_setup, error)) return 77;
      const ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kAuto, {.depth = 2});
      if (std::string(chosen.queue->name()) != (aio ? "aio" : "threads")) return 1;
      const char* const expected = error == EPERM ? "seccomp" : "ENOSYS";
      if (chosen.reason.find(expected) == std::string::npos) return 2;
      return moves_data(*chosen.queue, file_) ? 0 : 3;
    });
    if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
    EXPECT_EQ(status, 0);
  }
}

// Some profiles let a ring be made that can never be used.
TEST_F(ChooseIoQueue, FallsBackAtOnceWhereARingMayBeMadeButNotUsed) {
  if (!ring_works_here()) GTEST_SKIP() << "io_uring is refused here before any filter";
  const bool aio = aio_works_here();
  for (const int error : {EPERM, ENOSYS}) {
    const int status = in_child([&] {
      if (!forbid(SYS_io_uring_enter, error)) return 77;
      const ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kAuto, {.depth = 2});
      if (std::string(chosen.queue->name()) != (aio ? "aio" : "threads")) return 1;
      const std::string expected = "first block of 4 KiB was not taken: ";
      if (chosen.reason.find(expected + (error == EPERM ? "EPERM" : "ENOSYS")) == std::string::npos)
        return 2;
      if (error == EPERM && chosen.reason.find("io_uring_enter") == std::string::npos) return 3;
      return moves_data(*chosen.queue, file_) ? 0 : 4;
    });
    if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
    EXPECT_EQ(status, 0) << error;
  }
}

TEST_F(ChooseIoQueue, WorksUnregisteredWhereRegisteringIsForbidden) {
  if (!ring_works_here()) GTEST_SKIP() << "io_uring is refused here before any filter";
  const int status = in_child([&] {
    if (!forbid(SYS_io_uring_register, EPERM)) return 77;
    Pages memory(8192);
    const std::span<std::byte> buffer = memory.span();
    const int fd = file_.fd();
    const ChosenIoQueue chosen = choose_io_queue(
        IoQueueKind::kAuto, {.depth = 2, .buffers = {&buffer, 1}, .files = {&fd, 1}});
    if (std::string(chosen.queue->name()) != "uring") return 1;
    return moves_data(*chosen.queue, file_) ? 0 : 3;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

TEST_F(ChooseIoQueue, ServesUnderSmallLimitsOnLockedMemory) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become a user without CAP_IPC_LOCK";
  const bool ring_works = ring_works_here();
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{64 * 1024}}) {
    const int status = in_child([&] {
      const rlimit limit{bytes, bytes};
      if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 10;
      if (::setresuid(kNobody, kNobody, kNobody) != 0) return 11;
      Pages memory(1 << 20);  // more than may be locked
      const std::span<std::byte> buffer = memory.span();
      const int fd = file_.fd();
      const ChosenIoQueue chosen = choose_io_queue(
          IoQueueKind::kAuto, {.depth = 16, .buffers = {&buffer, 1}, .files = {&fd, 1}});
      const bool ring = std::string(chosen.queue->name()) == "uring";
      if (ring != chosen.reason.empty()) return 1;
      if (!ring && ring_works && chosen.reason.find("locked memory") == std::string::npos) return 2;
      return moves_data(*chosen.queue, file_) ? 0 : 3;
    });
    EXPECT_EQ(status, 0) << bytes;
  }
}

// However many threads the machine gives: a queue, or an error that says which limit to raise, and
// no thread of a half-made queue is left.
TEST_F(ChooseIoQueue, StartsAllItsThreadsOrNone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become a user with few threads";
  const IoQueueFactory none = [](const IoQueueOptions&) -> std::unique_ptr<IoQueue> {
    throw uring_refused("io_uring_setup", EPERM);
  };
  int refused = 0, made = 0;
  for (rlim_t threads = 1; threads <= 24; threads += 2) {
    const int status = in_child([&] {
      const rlimit limit{threads, threads};
      if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return 10;
      if (::setresuid(kNobody, kNobody, kNobody) != 0) return 11;
      try {
        const ChosenIoQueue chosen =
            choose_io_queue(IoQueueKind::kAuto, {.depth = 8}, {.uring = none, .aio = none});
        return moves_data(*chosen.queue, file_) ? 0 : 1;
      } catch (const Error& error) {
        const std::string text = error.what();
        if (error.code() != Code::kUnsupported || error.sys_errno() != EAGAIN) return 2;
        if (text.find("ulimit -u") == std::string::npos) return 3;
        if (text.find("io_uring_setup was refused") == std::string::npos) return 4;
        return threads_called("headrace-pio") == 0 ? 99 : 5;
      }
    });
    ASSERT_TRUE(status == 0 || status == 99) << status << " with at most " << threads;
    (status == 0 ? made : refused) += 1;
  }
  if (refused == 0) GTEST_SKIP() << "RLIMIT_NPROC does not hold here";
  EXPECT_GT(made, 0);
}
}  // namespace
}  // namespace headrace::swap::test
