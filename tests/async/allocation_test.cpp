// SPDX-License-Identifier: Apache-2.0
// Counts every allocation of the process, on all threads, while the asynchronous parts work.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <thread>

#include "async/conductor_conformance.hpp"
#include "async/worker_pool.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

#if defined(HEADRACE_SANITIZED)
// The sanitizers own malloc.
void* operator new(std::size_t size_bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(size_bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size_bytes, const std::nothrow_t&) noexcept {
  return operator new(size_bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#else
// glibc's own entry points; operator new and asio's aligned memory end here.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size_bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size_bytes);
}
void* calloc(std::size_t count, std::size_t size_bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size_bytes);
}
void* realloc(void* memory, std::size_t size_bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, size_bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t size_bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size_bytes);
}
void* memalign(std::size_t alignment, std::size_t size_bytes) {
  return aligned_alloc(alignment, size_bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size_bytes) {
  *memory = aligned_alloc(alignment, size_bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif

namespace headrace::async::testing {
namespace {
// Volatile: the compiler may leave out an allocation that nobody looks at.
void* volatile looked_at = nullptr;

TEST(Allocations, AreCounted) {
  const std::uint64_t before = allocations;
  looked_at = ::operator new(4);
  ::operator delete(looked_at);
#if !defined(HEADRACE_SANITIZED)
  looked_at = std::aligned_alloc(64, 64);
  std::free(looked_at);
  EXPECT_EQ(allocations - before, 2u);
#else
  EXPECT_EQ(allocations - before, 1u);
#endif
}

struct Sum {
  std::atomic<std::uint64_t> value{0};
  static void run(void* context, std::uint64_t unit) noexcept {
    static_cast<Sum*>(context)->value += unit;
  }
};

Task<> pass(WorkerPool& pool, Sum& sum) { co_await pool.for_units(8, &Sum::run, &sum); }

Task<int> round(Conductor& conductor, WorkerPool& pool, Sum& sum) {
  TaskGroup group;
  for (int i = 0; i < 3; ++i) group.spawn(pass(pool, sum));
  co_await group.join();
  co_await Delay{conductor, std::chrono::microseconds(20)};
  co_await Yield{conductor};
  co_return 1;
}

std::uint64_t allocations_of(Conductor& conductor, WorkerPool& pool, Sum& sum, int rounds) {
  const std::uint64_t before = allocations;
  int sum_of_rounds = 0;
  for (int i = 0; i < rounds; ++i) {
    sum_of_rounds += call(conductor, &pool, [&] { return round(conductor, pool, sum); });
    sum_of_rounds += call(conductor, nullptr, [&] { return round(conductor, pool, sum); });
  }
  const std::uint64_t counted = allocations - before;
  EXPECT_EQ(sum_of_rounds, 2 * rounds);
  return counted;
}

TEST(Allocations, NoneInAThousandRoundsOfCallWorkAndTimer) {
  FrameArena frames(64 << 10);
  const auto conductor = make_conductor_asio();
  conductor->use_frames(&frames);
  WorkerPool pool(*conductor, 2);
  Sum sum;
  allocations_of(*conductor, pool, sum, 5);  // warm: asio's first timer, the pool's threads
  EXPECT_EQ(allocations_of(*conductor, pool, sum, 1000), 0u);
  EXPECT_EQ(frames.overflow_frames(), 0u);
  EXPECT_EQ(sum.value, 2u * 1005u * 3u * 28u);
}

TEST(Allocations, NoneForPostsFromManyThreads) {
  struct Item : Work {
    int runs = 0;
    std::atomic<bool> idle{true};
  };
  const auto conductor = make_conductor_asio();
  Item items[3];
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::thread threads[3];
  for (int i = 0; i < 3; ++i) {
    items[i].run = [](Work* work) noexcept {
      auto* const self = static_cast<Item*>(work);
      ++self->runs;
      self->idle = true;
      self->idle.notify_one();
    };
    threads[i] = std::thread([&, i] {
      ++ready;
      go.wait(false);
      for (int round = 0; round < 2000; ++round) {
        items[i].idle.wait(false);
        items[i].idle = false;
        conductor->post(items[i]);
      }
      items[i].idle.wait(false);
      --ready;
    });
  }
  while (ready < 3) std::this_thread::yield();
  const std::uint64_t before = allocations;
  go = true;
  go.notify_all();
  while (ready > 0) std::this_thread::yield();
  EXPECT_EQ(allocations - before, 0u);
  for (std::thread& thread : threads) thread.join();
  for (const Item& item : items) EXPECT_EQ(item.runs, 2000);
}
}  // namespace
}  // namespace headrace::async::testing
