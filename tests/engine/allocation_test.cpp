// SPDX-License-Identifier: Apache-2.0
// allocation_test: after freeze a step allocates nothing, and what the engine holds on the heap is
// what the plan said. Counted by operator new, so it is a program of its own.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
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

  explicit Trained(const Settings& settings) : engine(settings) {
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
