// SPDX-License-Identifier: Apache-2.0
// device_late_test.cpp: the late flavour has teeth: what forgets to wait goes wrong on it, for some
// seed.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "device/device_bytes.hpp"
#include "support/computing_host.hpp"

namespace headrace::device {
namespace {
constexpr std::uint64_t kSeeds = 64;

std::shared_ptr<ComputingDevice> late_device(std::uint64_t seed) {
  return make_computing_host(
      {.flavour = HostFlavour::kLate, .seed = seed, .late_microseconds_max = 100});
}

// One stream writes, another reads; returns what the reader saw: 1 if it came second.
std::uint32_t hand_over(std::uint64_t seed, bool wait_for_the_writer) {
  const auto device = late_device(seed);
  const Stream writer = device->create_stream();
  const Stream reader = device->create_stream();
  const DeviceBytes shared(*device, 4);
  const std::uint32_t one = 1;
  std::uint32_t seen = 99;
  device->copy(writer, shared.data(), &one, 4);
  if (wait_for_the_writer) device->wait(reader, device->record(writer));
  device->copy(reader, &seen, shared.data(), 4);
  device->synchronize(writer);
  device->synchronize(reader);
  return seen;
}

TEST(DeviceHostLate, ShowsAMissingWaitBetweenStreams) {
  std::uint64_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) wrong += hand_over(seed, false) != 1;
  EXPECT_GT(wrong, 0u) << "none of " << kSeeds << " seeds let the reader overtake";
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed)
    ASSERT_EQ(hand_over(seed, true), 1u) << "seed " << seed;
}

TEST(DeviceHostLate, ShowsAMissingWaitOfTheHost) {
  std::uint64_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto device = late_device(seed);
    std::atomic<int> done = 0;
    device->launch({}, [&] { done = 1; });
    wrong += done == 0;
    device->synchronize({});
    ASSERT_EQ(done, 1) << "seed " << seed;
  }
  EXPECT_GT(wrong, 0u) << "on all of " << kSeeds << " seeds the work was done at once";
}

TEST(DeviceHostLate, LetsStreamsOvertakeEachOtherInBothDirections) {
  // A hundred operations on each of two streams, queued in turns: both must at some time be ahead
  // of the order of queueing by several.
  const auto device = late_device(5);
  const Stream streams[] = {device->create_stream(), device->create_stream()};
  std::vector<int> order;  // the device's thread until synchronize()
  for (int i = 0; i < 100; ++i) {
    for (int s = 0; s < 2; ++s) device->launch(streams[s], [&order, s] { order.push_back(s); });
  }
  device->synchronize(streams[0]);
  device->synchronize(streams[1]);
  int lead = 0, most = 0, least = 0;
  for (const int s : order) {
    lead += s == 0 ? 1 : -1;
    most = std::max(most, lead);
    least = std::min(least, lead);
  }
  EXPECT_EQ(order.size(), 200u);
  EXPECT_EQ(lead, 0);
  EXPECT_GE(most - least, 5);
}

TEST(DeviceHostLate, DoesNotPassForTheHost) {
  const auto device = late_device(1);
  EXPECT_FALSE(device->shares_host_memory());
}

TEST(DeviceHostLate, PoisonsFreedMemory) {
  // The C library leaves the middle of a freed range of this size as it was; sanitizers stop the
  // look at it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto device = late_device(1);
  void* keep = device->allocate(64 << 10);
  void* data = device->allocate(64 << 10);
  void* after = device->allocate(64 << 10);  // so that the heap does not shrink
  volatile unsigned char* middle = static_cast<unsigned char*>(data) + (32 << 10);
  ASSERT_EQ(*middle, 0);
  device->deallocate(data, 64 << 10);
  EXPECT_EQ(*middle, kPoison);
  device->deallocate(keep, 64 << 10);
  device->deallocate(after, 64 << 10);
#else
  GTEST_SKIP() << "reads freed memory on purpose";
#endif
}

TEST(DeviceHostLate, RunsOnANamedThreadThatTakesNoSignals) {
  const auto device = late_device(1);
  char name[16] = {};
  bool blocks_all = true;
  std::thread::id id;
  device->launch({}, [&] {
    pthread_getname_np(pthread_self(), name, sizeof(name));
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) {
      blocks_all = blocks_all && sigismember(&mask, signal) == 1;
    }
    id = std::this_thread::get_id();
  });
  device->synchronize({});
  EXPECT_EQ(std::strncmp(name, "headrace-dev", 12), 0) << name;
  EXPECT_TRUE(blocks_all);
  EXPECT_NE(id, std::this_thread::get_id());
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGUSR1), 0) << "the caller's mask was changed";
}

TEST(DeviceHostLate, TakesWorkFromManyThreads) {
  const auto device = late_device(7);
  std::vector<std::thread> threads;
  std::vector<int> counts(4);
  for (int& count : counts) {
    threads.emplace_back([&device, &count] {
      const Stream stream = device->create_stream();
      for (int i = 0; i < 100; ++i) device->launch(stream, [&count] { ++count; });
      device->synchronize(stream);
      device->destroy_stream(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counts, std::vector<int>(4, 100));
}
}  // namespace
}  // namespace headrace::device
