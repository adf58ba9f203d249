// SPDX-License-Identifier: Apache-2.0
// rank_cases_test.cpp: the cases that ranks on one GPU go through (ranks_on_cuda_test.cpp,
// nccl_two_ranks_on_gpu_test.cpp), by threads, over the simulated library and over shared memory.
#include "collective/rank_cases.hpp"

#include <gtest/gtest.h>

#include <exception>

#include "collective/nccl_world.hpp"
#include "collective/threads_world.hpp"
#include "support/computing_host.hpp"

namespace headrace::collective {
namespace {
void pass(std::vector<Rank>& ranks, const char* name,
          void (*body)(Rank&, std::uint32_t, std::uint32_t)) {
  on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
    try {
      body(rank, r, static_cast<std::uint32_t>(ranks.size()));
    } catch (const std::exception& error) {
      ADD_FAILURE() << name << ", rank " << r << " of " << ranks.size() << ": " << error.what();
    }
  });
}

TEST(RankCases, PassOverTheSimulatedLibrary) {
  for (const std::uint32_t world_size : {2u, 3u}) {
    for (const auto& [name, body] : kRankCases) {
      auto ranks = nccl_ranks(world_size, NcclFlavour::kLate);
      pass(ranks, name, body);
    }
  }
}

TEST(RankCases, PassByThreads) {
  for (const std::uint32_t world_size : {2u, 3u}) {
    for (const auto& [name, body] : kRankCases) {
      auto ranks = threads_world(world_size, device::HostFlavour::kLate);
      pass(ranks, name, body);
    }
  }
}

TEST(RankCases, NameWhatDiffers) {
  auto ranks = threads_world(2, device::HostFlavour::kPrompt);
  on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
    try {
      gives_one_piece_each(rank, 0, 2, {}, 200);  // both take themselves for rank 0
      EXPECT_EQ(r, 0u);
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("other pieces than were given"), std::string::npos);
    }
  });
}
}  // namespace
}  // namespace headrace::collective
