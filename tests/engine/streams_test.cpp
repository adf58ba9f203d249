// SPDX-License-Identifier: Apache-2.0
// streams_test: what the engine asks of a device's streams and events: bounded, and not more than
// the trainer's streams live.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "device/forwarding_device.hpp"
#include "headrace/engine.hpp"
#include "support/computing_host.hpp"

namespace headrace {
namespace {
// A late device that counts how often a stream is told to wait.
class CountingDevice final : public device::ForwardingDevice<Device> {
 public:
  CountingDevice()
      : ForwardingDevice(device::make_computing_host(
            {.flavour = device::HostFlavour::kLate, .seed = 3, .late_microseconds_max = 0})) {}
  void wait(Stream stream, Event event) override {
    ++waits;
    ForwardingDevice::wait(stream, event);
  }

  std::atomic<int> waits{0};
};

class EngineStreams : public ::testing::Test {
 protected:
  EngineStreams() {
    for (const char* name : {"a", "b"}) engine_.add_group(name, {{"w", DType::kF32, {300}, {}}});
    engine_.freeze();
    for (const std::uint32_t g : {0u, 1u}) {
      engine_.load(
          {g}, [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{1}); });
    }
  }
  static Settings one_buffer() {
    Settings settings;
    settings.offload_parameters = OffloadDevice::kCpu;
    settings.prefetch_groups = 0;
    return settings;
  }
  std::shared_ptr<CountingDevice> device_ = std::make_shared<CountingDevice>();
  Engine engine_{one_buffer(), {.device = device_}};
};

TEST_F(EngineStreams, ThatReadACachedGroupAreWaitedForOnceEach) {
  const Stream streams[] = {device_->create_stream(), device_->create_stream()};
  for (int i = 0; i < 100; ++i) (void)engine_.gather({0}, streams[i % 2]);
  const int before = device_->waits;
  (void)engine_.gather({1});
  // For the readers of what was in the buffer, and of this gather's stream for the fill.
  EXPECT_LE(device_->waits - before, 3);
}

TEST_F(EngineStreams, OfAnyNumberAreWaitedForInBoundedMemory) {
  for (int i = 0; i < 50; ++i) (void)engine_.gather({0}, device_->create_stream());
  const int before = device_->waits;
  (void)engine_.gather({1});
  EXPECT_LE(device_->waits - before, 9);
}

TEST_F(EngineStreams, MayEndBeforeTheLeaseThatWasReadOnThem) {
  const Stream stream = device_->create_stream();
  std::optional<Gathered> lease(engine_.gather({0}, stream));
  device_->destroy_stream(stream);
  lease.reset();
  (void)engine_.gather({1});
  engine_.close();
}

TEST_F(EngineStreams, ThatBroughtGradientsMayEndAfterTheStep) {
  const std::vector<float> gradient(300, 1.0f);
  for (int step = 0; step < 2; ++step) {
    const Stream stream = device_->create_stream();
    engine_.add_gradient({0}, gradient.data(), DType::kF32, stream);
    EXPECT_EQ(engine_.step({}).parameters_updated, 1u);
    device_->destroy_stream(stream);
  }
}
}  // namespace
}  // namespace headrace
