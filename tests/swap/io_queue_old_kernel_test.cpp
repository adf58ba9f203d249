// SPDX-License-Identifier: Apache-2.0
// The io_uring queue as on kernels 5.6 to 5.10, whose waits have no limit of their own: liburing
// then submits a timeout, and its completion is no request of ours. Alone, since it replaces a
// function of liburing.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "base/unique_fd.hpp"
#include "swap/io_queue.hpp"
#include "swap/kernel_queue.hpp"

extern "C" int io_uring_queue_init_params(unsigned entries, io_uring* ring,
                                          io_uring_params* params) {
  const auto original = reinterpret_cast<decltype(&io_uring_queue_init_params)>(
      ::dlsym(RTLD_NEXT, "io_uring_queue_init_params"));
  params->flags = 0;  // these came later
  const int result = original(entries, ring, params);
  ring->features &= ~unsigned{IORING_FEAT_EXT_ARG};
  return result;
}

namespace headrace::swap {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(UringOfOldKernels, GivesBackItsRequestsAndNothingElse) {
  std::unique_ptr<IoQueue> queue;
  try {
    queue = make_io_queue_uring({.depth = 4});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const base::UniqueFd reads(ends[0]), writes(ends[1]);
  std::array<std::byte, 4096> memory;
  for (int round = 0; round < 20; ++round) {
    std::array<IoRequest*, 8> done;
    EXPECT_EQ(queue->reap(done, milliseconds(1)), 0u) << "a wait that ends by its limit";
    IoRequest request;
    request.fd = reads.get();
    request.kind = IoKind::kRead;
    request.data = memory.data();
    request.size_bytes = memory.size();
    ASSERT_TRUE(queue->submit(request));
    ASSERT_EQ(queue->flush(), 0);
    std::thread later([&] {
      std::this_thread::sleep_for(milliseconds(5));
      EXPECT_EQ(::write(writes.get(), "bytes", 5), 5);
    });
    std::size_t got = 0;
    while (got == 0) got = queue->reap(done, seconds(60));
    later.join();
    ASSERT_EQ(got, 1u);
    EXPECT_EQ(done[0], &request);
    EXPECT_EQ(request.result, 5);
    EXPECT_EQ(queue->reap(done, milliseconds(1)), 0u);
  }
}
}  // namespace
}  // namespace headrace::swap
