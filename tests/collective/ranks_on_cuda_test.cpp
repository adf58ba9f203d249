// SPDX-License-Identifier: Apache-2.0
// ranks_on_cuda_test.cpp: two and three ranks on one GPU, which NCCL refuses: threads carry their
// bytes, through pinned host memory.
#include <gtest/gtest.h>

#include <exception>

#include "collective/rank_cases.hpp"
#include "device/cuda_under_test.hpp"
#include "headrace/transport.hpp"

namespace headrace::collective {
namespace {
TEST(RanksOnCuda, PassThroughHostMemory) {
  for (const std::uint32_t world_size : {2u, 3u}) {
    for (const auto& [name, body] : kRankCases) {
      const auto transports = make_thread_transports(world_size);
      std::vector<Rank> ranks;
      for (std::uint32_t r = 0; r < world_size; ++r) {
        const auto device = r == 0 ? device::make_cuda_under_test(world_size) : make_cuda_device();
        ASSERT_FALSE(transports[r]->reaches(*device));
        const auto collective = make_collective({.transport = transports[r],
                                                 .warn = [](const std::string&) {},
                                                 .staging_bytes = std::uint64_t{1} << 18});
        EXPECT_EQ(collective->host_bytes(), 0u);
        collective->use_device(device);
        EXPECT_EQ(collective->host_bytes(), std::uint64_t{1} << 18);
        ranks.push_back({device, collective});
      }
      on_every_rank(ranks, [&, name = name, body = body](std::uint32_t r, Rank& rank) {
        try {
          body(rank, r, world_size);
        } catch (const std::exception& error) {
          ADD_FAILURE() << name << ", rank " << r << " of " << world_size << ": " << error.what();
        }
      });
    }
  }
}
}  // namespace
}  // namespace headrace::collective
