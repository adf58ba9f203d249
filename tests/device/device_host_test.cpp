// SPDX-License-Identifier: Apache-2.0
// device_host_test.cpp: the CPU is a device, and so is the one that takes its time.
#include "device/device_host.hpp"

#include "device/device_conformance.hpp"
#include "support/computing_host.hpp"

namespace headrace::device {
namespace {
DeviceMaker late(std::uint64_t seed) {
  return {"Late" + std::to_string(seed), [seed] {
            return make_computing_host(
                {.flavour = HostFlavour::kLate, .seed = seed, .late_microseconds_max = 50});
          }};
}

INSTANTIATE_TEST_SUITE_P(DeviceHost, DeviceConformance,
                         testing::Values(DeviceMaker{"Prompt", [] { return make_device_host(); }},
                                         late(1), late(2), late(3)),
                         [](const auto& info) { return info.param.name; });

TEST(DeviceHostPrompt, IsDoneWhenTheCallReturns) {
  const auto device = make_device_host();
  EXPECT_TRUE(device->shares_host_memory());
  std::uint32_t target = 0;
  const std::uint32_t source = 3;
  device->copy({}, &target, &source, 4);
  EXPECT_EQ(target, 3u);
  int called = 0;
  device->notify(
      {}, [](void* count) noexcept { ++*static_cast<int*>(count); }, &called);
  EXPECT_EQ(called, 1);
}

TEST(DeviceHostPrompt, GivesMemoryTheHostCanUse) {
  const auto device = make_device_host();
  const DeviceBytes bytes(*device, 64);
  auto* words = static_cast<std::uint32_t*>(bytes.data());
  words[3] = 12;
  std::uint32_t back = 0;
  device->copy({}, &back, words + 3, 4);
  EXPECT_EQ(back, 12u);
}
}  // namespace
}  // namespace headrace::device
