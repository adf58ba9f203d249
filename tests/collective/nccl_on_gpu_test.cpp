// SPDX-License-Identifier: Apache-2.0
// nccl_on_gpu_test.cpp: one rank over NVIDIA's NCCL on a GPU: the library itself is tried, loaded,
// initialised and called on a CUDA device's streams.
#include <gtest/gtest.h>

#include <vector>

#include "collective/nccl_library.hpp"
#include "device/cuda_under_test.hpp"
#include "device/device_bytes.hpp"
#include "headrace/error.hpp"
#include "headrace/nccl.hpp"

namespace headrace {
namespace {
TEST(NcclOnGpu, OneRankGathersGivesAndMeetsItself) {
  try {
    (void)collective::load_nccl({});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const std::shared_ptr<Device> device = device::make_cuda_under_test(1);
  const auto rank =
      make_nccl_collective({.rank = 0, .world_size = 1, .id = nccl_unique_id(), .device = device});
  constexpr std::uint64_t kElements = 10'000;
  std::vector<float> values(kElements), back(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i) * 0.37f;
  const device::DeviceBytes whole(*device, kElements * 4);
  const Stream stream = device->create_stream();
  device->copy(stream, whole.data(), values.data(), kElements * 4);
  rank->all_gather({1, "gather"}, stream, {whole.data(), kElements * 4});
  const DeviceSpan own[] = {{whole.data(), kElements * 4}};
  rank->all_to_all({2, "gradients"}, stream, own, nullptr);
  device->copy(stream, back.data(), whole.data(), kElements * 4);
  device->synchronize(stream);
  EXPECT_EQ(back, values);
  std::vector<std::byte> mine(20'000, std::byte{7}), all(mine.size());
  rank->exchange({3, "norm"}, mine, all);
  EXPECT_EQ(all, mine);
  rank->abort("the test is over");
  EXPECT_THROW(rank->exchange({4, "later"}, {}, {}), Error);
}
}  // namespace
}  // namespace headrace
