// SPDX-License-Identifier: Apache-2.0
// nccl_on_gpu_test.cpp: one rank over NVIDIA's NCCL on a GPU: the library itself is tried, loaded,
// initialised and called on a CUDA device's streams.
#include <gtest/gtest.h>

#include <vector>

#include "collective/nccl_library.hpp"
#include "collective/transport_conformance.hpp"
#include "device/cuda_under_test.hpp"
#include "device/device_bytes.hpp"
#include "headrace/error.hpp"
#include "headrace/nccl.hpp"

namespace headrace::collective {
namespace {
TEST(NcclOnGpu, OneRankGathersGivesAndMeetsItself) {
  try {
    (void)load_nccl({});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const std::shared_ptr<Device> device = device::make_cuda_under_test(1);
  const auto rank = make_nccl_transport(
      {.id = nccl_unique_id(), .messages = make_thread_transports(1)[0], .device = device});
  EXPECT_TRUE(rank->reaches(*device));
  constexpr std::uint64_t kElements = 10'000;
  std::vector<float> values(kElements), back(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i) * 0.37f;
  const device::DeviceBytes whole(*device, kElements * 4);
  const Stream stream = device->create_stream();
  device->copy(stream, whole.data(), values.data(), kElements * 4);
  const std::vector<Transport::Piece> own = {{whole.data(), kElements * 4}};
  TransportCallEnd gathered, given;
  rank->all_gather(Lane::kGather, stream, own, gathered.done());
  EXPECT_EQ(gathered.error(), "");
  rank->all_to_all(Lane::kReduce, stream, own, own, given.done());
  EXPECT_EQ(given.error(), "");
  device->copy(stream, back.data(), whole.data(), kElements * 4);
  device->synchronize(stream);
  EXPECT_EQ(back, values);
  reads_what_others_post(*rank);
  ends_what_waits_when_it_aborts(*rank);
  TransportCallEnd later;
  rank->all_gather(Lane::kGather, stream, own, later.done());
  EXPECT_NE(later.error(), "");
  device->destroy_stream(stream);
}
}  // namespace
}  // namespace headrace::collective
