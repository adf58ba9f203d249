// SPDX-License-Identifier: Apache-2.0
// nccl_on_simulated_cuda_test.cpp: the transport over the simulated NCCL, on a simulated GPU's
// streams.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "collective/nccl_world.hpp"
#include "collective/transport_conformance.hpp"
#include "device/cuda_under_test.hpp"
#include "device/simulated_cuda.hpp"

namespace headrace::collective {
namespace {
void launch(Stream stream, std::function<void()> kernel) {
  device::simulated_cuda::launch(stream.handle, std::move(kernel));
}

class NcclOnSimulatedCuda : public ::testing::TestWithParam<TransportCase> {};

TEST_P(NcclOnSimulatedCuda, AsEveryTransport) {
  for (const std::uint32_t world_size : {1u, 2u, 3u}) {
    std::vector<std::shared_ptr<device::ComputingDevice>> devices = {
        device::make_computing_cuda_device(world_size)};
    while (devices.size() < world_size)
      devices.push_back(std::make_shared<device::DeviceWithLaunch>(make_cuda_device(), launch));
    const NcclWorld world =
        nccl_world(make_thread_transports(world_size), devices, /*may_block=*/false);
    EXPECT_EQ(first_error(transports_of(world), GetParam().run), "") << world_size << " ranks";
  }
}
INSTANTIATE_TEST_SUITE_P(Conformance, NcclOnSimulatedCuda, ::testing::ValuesIn(kTransportCases),
                         [](const auto& info) { return info.param.name; });
}  // namespace
}  // namespace headrace::collective
