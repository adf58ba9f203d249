// SPDX-License-Identifier: Apache-2.0
// A transfer in flight allocates nothing, on any thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "drive_bench.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}
// Not inlined: the compiler would take malloc and free for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return operator new(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace headrace::swap::test {
namespace {

void expect_no_allocations(IoQueueKind kind) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 64 * kPage);
  Pages memory(60 * 16 * kPage);
  CollectingConductor conductor;
  const auto drive =
      make_drive_thread(conductor, {.path = file.path(),
                                    .fd = file.fd(),
                                    .io_block_bytes = 2 * kPage,
                                    .queue_depth = 4,
                                    .make_queue = [kind](const IoQueueOptions& options) {
                                      return choose_io_queue(kind, options);
                                    }});
  std::vector<Transfer> transfers;
  for (std::uint64_t i = 0; i < 60; ++i) {
    transfers.push_back(make_transfer(i % 3 == 0 ? IoKind::kWrite : IoKind::kRead,
                                      memory.data() + i * 16 * kPage, i % 16 * kPage, 16 * kPage,
                                      static_cast<Priority>(i % 3)));
  }
  std::size_t ended = 0;
  const auto run_half = [&] {
    for (std::size_t i = 0; i < 30; ++i) drive->start(transfers[ended + i]);
    conductor.wait_for(ended += 30);
  };
  run_half();  // whatever threads and libraries set up at their first request
  const std::uint64_t before = allocations.load();
  run_half();
  EXPECT_EQ(allocations.load() - before, 0u) << drive->queue_name();
  for (const Transfer& transfer : transfers) EXPECT_EQ(transfer.done_bytes, 16 * kPage);
}

TEST(Drive, AllocatesNothingPerTransferOnTheChosenQueue) {
  expect_no_allocations(IoQueueKind::kAuto);
}
TEST(Drive, AllocatesNothingPerTransferOnThreads) { expect_no_allocations(IoQueueKind::kThreads); }
}  // namespace
}  // namespace headrace::swap::test
