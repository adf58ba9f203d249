// SPDX-License-Identifier: Apache-2.0
// resume_test: what was stored goes into another engine, wherever its bytes lie, and trains on to
// the bits of the run that was not interrupted.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <thread>

#include "support/network_training.hpp"
#include "support/saved_state.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace {
namespace {
using device::HostFlavour;
using testing::SavedState;

enum class Placement { kMemory, kStateNvme, kAllNvme, kMixed };
struct Place {
  Placement placement;
  std::uint64_t tile_elements;
  HostFlavour device;
  MasterLayout master = MasterLayout::kSplit;
};

// Even: the network's even and odd steps differ.
constexpr int kBefore = 2, kAfter = 3;

Settings settings_of(const Place& place, const std::string& directory) {
  Settings s;
  s.tile_elements = place.tile_elements;
  s.update_slots = 2;
  s.update_threads = 2;
  s.io_block_bytes = 128 * 1024;
  s.master = place.master;
  if (place.placement == Placement::kMemory) return s;
  s.nvme_paths = {directory};
  s.offload_optimizer = OffloadDevice::kNvme;
  if (place.placement != Placement::kStateNvme) s.offload_parameters = OffloadDevice::kNvme;
  return s;
}

// One engine in one place. kMixed: under a budget that keeps a part of the state in memory.
class Training : public testing::NetworkTraining {
 public:
  explicit Training(const Place& place, std::shared_ptr<Collective> ranks = nullptr,
                    std::shared_ptr<device::ComputingDevice> device = nullptr,
                    std::uint64_t data_seed = 1, const std::string& shared = "")
      : NetworkTraining(
            {.max_norm = 0.05f, .data_seed = data_seed}, std::move(ranks),
            device ? std::move(device)
                   : device::make_computing_host(
                         {.flavour = place.device, .seed = 5, .late_microseconds_max = 30})) {
    Settings settings = settings_of(place, shared.empty() ? directory() : shared);
    for (;;) {
      begin(settings);
      const PlanReport& plan = engine().plan();
      const double share = plan.resident_share_of_state;
      if (place.placement != Placement::kMixed || (share > 0.05 && share < 0.95)) return;
      EXPECT_LT(share, 1) << "no budget keeps a part";
      if (share == 1) return;
      settings.host_budget_bytes = settings.host_budget_bytes == 0
                                       ? plan.smallest_host_bytes
                                       : settings.host_budget_bytes + (1 << 19);
    }
  }
};

class Resume : public ::testing::TestWithParam<MasterLayout> {};

TEST_P(Resume, EndsInTheBitsOfTheRunThatWasNotInterrupted) {
  const MasterLayout master = GetParam();
  const Place places[] = {
      {Placement::kMemory, 65536, HostFlavour::kPrompt, master},
      {Placement::kAllNvme, 131072, HostFlavour::kPrompt, master},
      {Placement::kMixed, 65536, HostFlavour::kPrompt, master},
      {Placement::kStateNvme, 131072, HostFlavour::kLate, master},
      {Placement::kAllNvme, 65536, HostFlavour::kLate, master},
      {Placement::kMemory, 131072, HostFlavour::kLate, master},
  };
  std::string expected;
  SavedState saved;
  for (std::size_t i = 0; i < std::size(places); ++i) {
    SCOPED_TRACE("place " + std::to_string(i));
    if (i > 0) {
      Training fresh(places[i]);
      saved.into(fresh.engine());
      EXPECT_TRUE(SavedState(fresh.engine()) == saved);
      fresh.train(kAfter);
      EXPECT_EQ(fresh.hashes(), expected);
    }
    Training whole(places[i]);
    whole.train(kBefore);
    saved = SavedState(whole.engine());
    whole.train(kAfter);
    if (i == 0) expected = whole.hashes();
    EXPECT_EQ(whole.hashes(), expected);
  }
}
INSTANTIATE_TEST_SUITE_P(Master, Resume,
                         ::testing::Values(MasterLayout::kSplit, MasterLayout::kF32),
                         [](const auto& info) {
                           return info.param == MasterLayout::kSplit ? "Split" : "F32";
                         });

// The layouts round a weight apart in ties only; master and moments are the same.
TEST(ResumeAcrossLayouts, TakesTheStateOfTheOtherMasterLayout) {
  Training split({Placement::kMemory, 65536, HostFlavour::kPrompt, MasterLayout::kSplit});
  split.train(kBefore);
  Training whole({Placement::kAllNvme, 131072, HostFlavour::kPrompt, MasterLayout::kF32});
  SavedState(split.engine()).into(whole.engine());
  EXPECT_EQ(whole.engine().hash_optimizer_state(), split.engine().hash_optimizer_state());
  Training back({Placement::kMixed, 65536, HostFlavour::kPrompt, MasterLayout::kSplit});
  SavedState(whole.engine()).into(back.engine());
  EXPECT_EQ(back.hashes(), split.hashes());
}

// Runs `body` for every rank on a thread of its own.
void run_ranks(std::uint32_t world, const Place& place,
               const std::function<void(std::uint32_t rank, Training&)>& body) {
  const testing::TemporaryDirectory directory;
  std::vector<std::shared_ptr<device::ComputingDevice>> hosts;
  for (std::uint32_t r = 0; r < world; ++r) {
    hosts.push_back(device::make_computing_host(
        {.flavour = place.device, .seed = r + 1, .late_microseconds_max = 30}));
  }
  const auto ranks =
      collective::make_collective_threads({hosts.begin(), hosts.end()}, std::chrono::seconds(120));
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      try {
        Training run(place, ranks[r], hosts[r], r + 1, directory.string());
        body(r, run);
        run.engine().close();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class ResumeOverRanks : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(ResumeOverRanks, EndsInTheBitsOfTheRunThatWasNotInterrupted) {
  const std::uint32_t world = GetParam();
  std::vector<SavedState> saved(world);
  std::vector<std::string> expected(world);
  run_ranks(world, {Placement::kMemory, 65536, HostFlavour::kPrompt},
            [&](std::uint32_t rank, Training& run) {
              run.train(kBefore);
              saved[rank] = SavedState(run.engine());
              run.train(kAfter);
              expected[rank] = run.hashes();
            });
  for (const HostFlavour flavour : {HostFlavour::kPrompt, HostFlavour::kLate}) {
    run_ranks(world, {Placement::kAllNvme, 131072, flavour},
              [&](std::uint32_t rank, Training& run) {
                // Joined before: what the ranks have cached of each other is stale afterwards.
                for (std::uint32_t g = 0; g < run.engine().group_count(); ++g)
                  (void)run.engine().gather({g});
                saved[rank].into(run.engine());
                run.train(kAfter);
                EXPECT_EQ(run.hashes(), expected[rank]) << "rank " << rank;
              });
  }
  // A rank keeps its shard's elements, zeros elsewhere: the sum is the whole, for another world.
  SavedState whole = saved[0];
  for (std::uint32_t r = 1; r < world; ++r) whole.add_shard(saved[r]);
  Training alone({Placement::kMixed, 65536, HostFlavour::kPrompt});
  whole.into(alone.engine());
  EXPECT_TRUE(SavedState(alone.engine()) == whole);
  run_ranks(5 - world, {Placement::kStateNvme, 65536, HostFlavour::kPrompt},
            [&](std::uint32_t, Training& run) {
              whole.into(run.engine());
              run.train(1);
            });
}
INSTANTIATE_TEST_SUITE_P(WorldSize, ResumeOverRanks, ::testing::Values(2u, 3u));
}  // namespace
}  // namespace headrace
