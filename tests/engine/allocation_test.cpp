// SPDX-License-Identifier: Apache-2.0
// allocation_test: after freeze a step allocates nothing, and what the engine holds on the heap is
// what the plan said. Counted by operator new, so it is a program of its own.
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "headrace/engine.hpp"
#include "support/temporary_directory.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
std::atomic<std::int64_t> held_bytes{0};

void* counted(std::size_t size) {
  void* const data = std::malloc(size);
  if (data == nullptr) throw std::bad_alloc();
  allocations.fetch_add(1);
  held_bytes.fetch_add(static_cast<std::int64_t>(malloc_usable_size(data)));
  return data;
}
void uncounted(void* data) noexcept {
  if (data != nullptr) held_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(data)));
  std::free(data);
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted(size); }
void operator delete(void* data) noexcept { uncounted(data); }
void operator delete[](void* data) noexcept { uncounted(data); }
void operator delete(void* data, std::size_t) noexcept { uncounted(data); }
void operator delete[](void* data, std::size_t) noexcept { uncounted(data); }

namespace headrace {
namespace {
constexpr std::int64_t kWidth = 1024;
constexpr int kGroups = 6;

struct Trained {
  Engine engine;
  std::vector<GroupId> groups;
  std::vector<std::uint16_t> gradient = std::vector<std::uint16_t>(kWidth * kWidth, 0x3c00);

  explicit Trained(const Settings& settings, std::shared_ptr<Collective> collective = nullptr)
      : engine(settings, {.collective = std::move(collective)}) {
    for (int g = 0; g < kGroups; ++g) {
      groups.push_back(engine.add_group(
          "h." + std::to_string(g),
          {{"weight", DType::kBf16, {kWidth, kWidth}, {}}, {"bias", DType::kBf16, {kWidth}, {}}}));
    }
    engine.freeze();
    for (const GroupId group : groups) {
      engine.load(group, [](ParameterId, std::span<std::byte> out) {
        std::memset(out.data(), 0, out.size());
      });
    }
  }
  void step() {
    for (const GroupId group : groups) (void)engine.gather(group);
    for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
      (void)engine.gather(*group);
      for (const ParameterId id : engine.parameters(*group))
        engine.add_gradient(id, gradient.data(), DType::kBf16);
    }
    engine.step({.max_norm = 1});
  }
};

Settings on_nvme(const testing::TemporaryDirectory& directory) {
  Settings s;
  s.offload_optimizer = OffloadDevice::kNvme;
  s.offload_parameters = OffloadDevice::kNvme;
  s.nvme_paths = {directory.string()};
  s.update_threads = 2;
  return s;
}

TEST(Allocation, AStepAllocatesNothing) {
  const testing::TemporaryDirectory directory;
  Trained trained(on_nvme(directory));
  for (int warm = 0; warm < 3; ++warm) trained.step();
  const std::uint64_t before = allocations.load();
  for (int step = 0; step < 5; ++step) trained.step();
  EXPECT_EQ(allocations.load(), before);
}

// What two ranks on threads give each other, without memory of its own.
struct Pair {
  std::barrier<> meet{2};
  std::array<std::span<const DeviceSpan>, 2> give;
  std::array<std::byte*, 2> data = {};
};

class OfPair final : public Collective {
 public:
  OfPair(Pair& pair, std::uint32_t rank) : pair_(pair), rank_(rank) {}
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return 2; }
  bool takes_any_thread() const noexcept override { return true; }
  void all_gather(CollectiveTag, Stream, std::span<const DeviceSpan> whole) override {
    pair_.give[rank_] = whole;
    pair_.meet.arrive_and_wait();
    const DeviceSpan& piece = pair_.give[other()][other()];
    if (piece.size_bytes > 0) std::memcpy(whole[other()].data, piece.data, piece.size_bytes);
    pair_.meet.arrive_and_wait();
  }
  void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan> give, void* take) override {
    pair_.give[rank_] = give;
    pair_.meet.arrive_and_wait();
    const DeviceSpan& piece = pair_.give[other()][rank_];
    std::memcpy(take, piece.data, piece.size_bytes);
    pair_.meet.arrive_and_wait();
  }
  bool has_all_to_all_v() const noexcept override { return true; }
  void all_to_all_v(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                    std::span<const DeviceSpan> take, std::uint64_t) override {
    all_to_all(tag, stream, give, take[other()].data);
  }
  void exchange(CollectiveTag, std::span<const std::byte> mine, std::span<std::byte> all) override {
    pair_.data[rank_] = all.data();
    std::memcpy(all.data() + rank_ * mine.size(), mine.data(), mine.size());
    pair_.meet.arrive_and_wait();
    std::memcpy(all.data() + other() * mine.size(), pair_.data[other()] + other() * mine.size(),
                mine.size());
    pair_.meet.arrive_and_wait();
  }
  void abort(std::string_view why) noexcept override {
    std::fprintf(stderr, "a rank failed, and the other would wait: %.*s\n",
                 static_cast<int>(why.size()), why.data());
    std::abort();
  }

 private:
  std::uint32_t other() const noexcept { return 1 - rank_; }
  Pair& pair_;
  const std::uint32_t rank_;
};

class AllocationOfRanks : public ::testing::TestWithParam<std::tuple<RankOrder, std::uint32_t>> {};

TEST_P(AllocationOfRanks, AStepAllocatesNothing) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_nvme(directory);
  const auto [order, node_ranks] = GetParam();
  settings.rank_agreement = order;
  settings.hierarchical_reduce_ranks = node_ranks;
  Pair pair;
  std::uint64_t before = 0, after = 0;
  std::array<std::uint64_t, 2> followed = {};
  const auto train = [&](std::uint32_t rank) {
    Trained trained(settings, std::make_shared<OfPair>(pair, rank));
    for (int warm = 0; warm < 4; ++warm) trained.step();
    pair.meet.arrive_and_wait();
    if (rank == 0) before = allocations.load();
    pair.meet.arrive_and_wait();
    for (int step = 0; step < 5; ++step) trained.step();
    pair.meet.arrive_and_wait();
    if (rank == 0) after = allocations.load();
    pair.meet.arrive_and_wait();
    followed[rank] = trained.engine.stats().steps_followed;
  };
  std::thread other([&] { train(1); });
  train(0);
  other.join();
  EXPECT_EQ(after, before);
  for (const std::uint64_t steps : followed) EXPECT_EQ(steps > 0, order == RankOrder::kTrace);
}
INSTANTIATE_TEST_SUITE_P(Order, AllocationOfRanks,
                         ::testing::Combine(::testing::Values(RankOrder::kTrace, RankOrder::kEach),
                                            ::testing::Values(1u, 2u)));

TEST(Allocation, WhatIsHeldIsWithinTwoPercentOfThePlan) {
  const testing::TemporaryDirectory directory;
  const std::int64_t before = held_bytes.load();
  Trained trained(on_nvme(directory));
  trained.step();
  const Stats stats = trained.engine.stats();
  const PlanReport& plan = trained.engine.plan();
  const auto planned = static_cast<double>(plan.host_bytes + plan.device_bytes);
  EXPECT_NEAR(static_cast<double>(stats.engine_bytes), planned, 0.02 * planned);
  // The heap as the allocator saw it, less this test's own gradient, beside the plan's arena.
  std::uint64_t heap_rows = 0;
  for (const PlanRow& row : plan.rows) {
    if (row.what == "bookkeeping" || row.what == "coroutine frames") heap_rows += row.bytes;
  }
  const auto heap = static_cast<double>(held_bytes.load() - before) -
                    static_cast<double>(trained.gradient.size() * sizeof(std::uint16_t));
  EXPECT_NEAR(heap, static_cast<double>(heap_rows), 0.02 * planned);
}
}  // namespace
}  // namespace headrace
