// SPDX-License-Identifier: Apache-2.0
// gather_slots_test: a group comes to the same address step after step, as code that keeps
// addresses needs it (CUDA graphs).
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "support/computing_host.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
void expect_fixed_addresses(const Settings& settings) {
  constexpr int kGroups = 7;
  const auto device = device::make_computing_host(
      {.flavour = device::HostFlavour::kLate, .late_microseconds_max = 20});
  Engine engine(settings, {.device = device});
  std::vector<GroupId> groups;
  for (int g = 0; g < kGroups; ++g)
    groups.push_back(engine.add_group("g" + std::to_string(g), {{"w", DType::kBf16, {300, 300}}}));
  const GroupId rest = engine.add_group("rest", {{"w", DType::kBf16, {500}}});
  engine.keep_bound(rest);
  engine.freeze();
  for (const GroupId group : groups) engine.load(group, [](ParameterId, std::span<std::byte>) {});
  engine.load(rest, [](ParameterId, std::span<std::byte>) {});
  std::map<std::uint32_t, std::set<void*>> addresses;
  const auto use = [&](GroupId group, int step) {
    const Gathered lease = engine.gather(group);
    if (step > 0) addresses[group.index].insert(lease.bytes(engine.parameters(group)[0]).data);
  };
  for (int step = 0; step < 5; ++step) {
    {
      const Gathered bound = engine.gather(rest);
      if (step > 0) addresses[rest.index].insert(bound.bytes(engine.parameters(rest)[0]).data);
      for (int g = 0; g < kGroups; ++g) use(groups[static_cast<std::size_t>(g)], step);
      for (int g = kGroups; g-- > 0;) use(groups[static_cast<std::size_t>(g)], step);
    }
    engine.step({.learning_rate = 1e-3f});
  }
  for (const auto& [group, seen] : addresses) EXPECT_EQ(seen.size(), 1u) << "group " << group;
  engine.close();
}

TEST(GatherSlots, AGroupComesToTheSameAddressStepAfterStep) {
  const testing::TemporaryDirectory directory;
  for (const std::uint32_t prefetch : {0u, 1u, 2u, 3u}) {
    for (const bool nvme : {false, true}) {
      SCOPED_TRACE("prefetch " + std::to_string(prefetch) + (nvme ? ", NVMe" : ", host"));
      Settings settings;
      settings.tile_elements = 65536;
      settings.prefetch_groups = prefetch;
      settings.offload_parameters = nvme ? OffloadDevice::kNvme : OffloadDevice::kCpu;
      if (nvme) settings.nvme_paths = {directory.string()};
      expect_fixed_addresses(settings);
    }
  }
}
}  // namespace
}  // namespace headrace
