// SPDX-License-Identifier: Apache-2.0
// cuda_pin_refusal_test: a driver that refuses to pin host memory: the device serves without, and
// an engine says so once, goes on and gives the same bits.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_under_test.hpp"
#include "device/device_bytes.hpp"
#include "device/forwarding_device.hpp"
#include "headrace/engine.hpp"
#include "support/mlp.hpp"

namespace headrace {
namespace {
constexpr std::size_t kPage = 4096;

struct Pages {
  explicit Pages(std::size_t bytes)
      : size_bytes(bytes), data(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes))) {}
  ~Pages() { std::free(data); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  const std::size_t size_bytes;
  std::byte* const data;
};

// A page in the middle is pinned by somebody else: no driver pins it twice, so it refuses the
// whole.
class PageOfAnother {
 public:
  PageOfAnother(void* data, std::size_t size_bytes)
      : page_(static_cast<std::byte*>(data) + size_bytes / 2 / kPage * kPage) {
    EXPECT_EQ(cudaHostRegister(page_, kPage, cudaHostRegisterDefault), cudaSuccess);
  }
  ~PageOfAnother() { EXPECT_EQ(cudaHostUnregister(page_), cudaSuccess); }
  PageOfAnother(const PageOfAnother&) = delete;
  PageOfAnother& operator=(const PageOfAnother&) = delete;

 private:
  std::byte* const page_;
};

class Refused final : public device::ForwardingDevice<device::ComputingDevice> {
 public:
  explicit Refused(const std::shared_ptr<device::ComputingDevice>& to)
      : ForwardingDevice(to), computing_(to) {}
  void pin(void* data, std::size_t size_bytes) override {
    const PageOfAnother refused(data, size_bytes);
    ForwardingDevice::pin(data, size_bytes);
  }
  void launch(Stream stream, std::function<void()> kernel) override {
    computing_->launch(stream, std::move(kernel));
  }

 private:
  const std::shared_ptr<device::ComputingDevice> computing_;
};

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

// There and back again.
void expect_copies(Device& device, const Pages& memory) {
  for (std::size_t i = 0; i < memory.size_bytes; ++i)
    memory.data[i] = static_cast<std::byte>(i * 7 + i / 256);
  const std::vector<std::byte> sent(memory.data, memory.data + memory.size_bytes);
  const device::DeviceBytes there(device, memory.size_bytes);
  device.copy({}, there.data(), memory.data, memory.size_bytes);
  device.synchronize({});
  std::fill_n(memory.data, memory.size_bytes, std::byte{0});
  device.copy({}, memory.data, there.data(), memory.size_bytes);
  device.synchronize({});
  EXPECT_TRUE(std::ranges::equal(sent, std::span(memory.data, memory.size_bytes)));
}

TEST(CudaPinRefused, LeavesTheDeviceAndTheMemoryAsTheyWere) {
  const auto device = device::make_cuda_under_test(1);
  const Pages memory(8 << 20);
  {
    const PageOfAnother refused(memory.data, memory.size_bytes);
    EXPECT_EQ(code_of([&] { device->pin(memory.data, memory.size_bytes); }), Code::kUnsupported);
  }
  expect_copies(*device, memory);
  EXPECT_EQ(code_of([&] { device->pin(memory.data, memory.size_bytes); }), Code::kOk);
  expect_copies(*device, memory);
  device->unpin(memory.data, memory.size_bytes);
}

// What a limit of locked memory does is the driver's affair: pinned or not, copies are right.
TEST(CudaPinRefused, ByALimitOfLockedMemoryOrNotCopiesAreRight) {
  const auto device = device::make_cuda_under_test(1);
  const Pages memory(32 << 20);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(low.rlim_cur, 64 << 10);
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  const Code code = code_of([&] { device->pin(memory.data, memory.size_bytes); });
  EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_TRUE(code == Code::kOk || code == Code::kUnsupported) << code_name(code);
  RecordProperty("pinned_in_spite_of_the_limit", code == Code::kOk ? "yes" : "no");
  expect_copies(*device, memory);
  device->unpin(memory.data, memory.size_bytes);
}

struct Trained {
  std::string hash;
  std::vector<std::string> warnings;
};
Trained train(const std::shared_ptr<device::ComputingDevice>& device) {
  Settings settings;
  settings.tile_elements = 65536;
  settings.update_threads = 2;
  settings.offload_parameters = settings.offload_optimizer = OffloadDevice::kCpu;
  Trained trained;
  Engine engine(settings, {.device = device, .log = [&](LogLevel level, std::string_view text) {
                             if (level == LogLevel::kWarning) trained.warnings.emplace_back(text);
                           }});
  testing::Mlp network(engine, *device, {});
  for (int step = 0; step < 4; ++step) network.train_step();
  trained.hash = engine.hash_parameters() + engine.hash_optimizer_state();
  engine.close();
  return trained;
}

TEST(CudaPinRefused, IsSaidOnceAndTrainingGoesOnToTheSameBits) {
  const auto device = device::make_computing_cuda_device(1);
  const Trained expected = train(device);
  EXPECT_EQ(expected.warnings, std::vector<std::string>{});
  const Trained unpinned = train(std::make_shared<Refused>(device));
  EXPECT_EQ(unpinned.hash, expected.hash);
  ASSERT_EQ(unpinned.warnings.size(), 1u);
  EXPECT_NE(unpinned.warnings[0].find("of host memory cannot be pinned"), std::string::npos)
      << unpinned.warnings[0];
}
}  // namespace
}  // namespace headrace
