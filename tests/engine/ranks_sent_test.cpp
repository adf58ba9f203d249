// SPDX-License-Identifier: Apache-2.0
// ranks_sent_test: the bytes that ranks send: as planned, at every stage, with nodes, and in fewer
// bits.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "partition/partition.hpp"
#include "support/rank_engines.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::ranks_sent_test {
namespace {
using namespace rank_engines;

class RanksStats : public ::testing::TestWithParam<std::uint32_t> {};

// A step sends this rank's shard once to each other rank for each join, and each of their shards'
// gradients once. What the ranks say to each other comes on top, and is small. Shards are unequal,
// and those of the smallest group empty on all ranks but one.
TEST_P(RanksStats, CountWhatTheCollectiveSends) {
  const std::uint32_t world = GetParam();
  const auto errors = run_ranks(world, HostFlavour::kPrompt, plain, [&](Rank& rank) {
    constexpr std::uint32_t kGroups = 3, kSteps = 4;
    constexpr std::array<std::int64_t, kGroups> kElements = {5 * 65536 + 1, 700, 2 * 65536};
    std::vector<partition::GroupShape> shapes;
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      shapes.push_back({{{"w", DType::kBf16, {kElements[g]}, {}}}});
      rank.engine.add_group("h." + std::to_string(g), shapes[g].parameters);
    }
    rank.engine.freeze();
    load_all(rank.engine);
    const auto partition = partition::make_partition(shapes, 65536, rank.number, world);
    partition::SentBytes sent;
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      const partition::SentBytes one = partition::sent_by(partition, g, rank.number);
      sent.gathered += one.gathered;
      sent.reduced += one.reduced;
    }
    const Stats before = rank.engine.stats();
    const std::vector<std::uint16_t> gradient(kElements[0], 0x3c00);
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      for (std::uint32_t g = 0; g < kGroups; ++g) {
        (void)rank.engine.gather({g});
        rank.engine.add_gradient({g}, gradient.data(), DType::kBf16);
      }
      rank.engine.step({.learning_rate = 0.1f});
    }
    const Stats after = rank.engine.stats();
    EXPECT_EQ(after.all_gathers.sent_bytes - before.all_gathers.sent_bytes, kSteps * sent.gathered);
    EXPECT_EQ(after.all_to_alls.sent_bytes - before.all_to_alls.sent_bytes, kSteps * sent.reduced);
    EXPECT_LT(after.exchanges.sent_bytes - before.exchanges.sent_bytes, kSteps * 2048 * world);
    EXPECT_EQ(
        after.collective_sent_bytes,
        after.all_gathers.sent_bytes + after.all_to_alls.sent_bytes + after.exchanges.sent_bytes);
    EXPECT_EQ(after.collective_calls,
              after.all_gathers.calls + after.all_to_alls.calls + after.exchanges.calls);
    EXPECT_GT(after.collective_seconds, before.collective_seconds);
    EXPECT_GT(after.gather_wait_ranks_seconds + after.step_wait_ranks_seconds, 0);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}
INSTANTIATE_TEST_SUITE_P(Worlds, RanksStats, ::testing::Values(2u, 3u, 4u));

// Without reads of updates that are still pending: their bytes belong to the steps before.
Stats stats_of_whole_steps(Engine& engine) {
  engine.finish_step();
  return engine.stats();
}

// (world, stage, in memory or on NVMe)
class RanksStages
    : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, OffloadDevice>> {
 protected:
  static constexpr std::uint32_t kGroups = 7, kMicroBatches = 2, kWarmUp = 3, kSteps = 3;
  static void step(Engine& engine) {
    static const std::vector<std::uint16_t> gradient(3 * 65536, 0x3c00);
    for (std::uint32_t m = 0; m < kMicroBatches; ++m) {
      for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
      for (std::uint32_t g = kGroups; g-- > 0;) {
        (void)engine.gather({g});
        engine.add_gradient({g}, gradient.data(), DType::kBf16);
      }
    }
    engine.step({.learning_rate = 0.1f});
  }
};

// At stage 3, what the slots still hold where a pass turns is not joined again. Below stage 3, each
// group is joined once per step, and the plan has memory for all of them.
TEST_P(RanksStages, SendWhatThePlanSays) {
  const auto [world, stage, place] = GetParam();
  const testing::TemporaryDirectory folder;
  const auto settings = [&, stage = stage, place = place](std::uint32_t) {
    Settings s;
    s.zero_stage = stage;
    s.offload_optimizer = s.offload_parameters = place;
    if (place == OffloadDevice::kNvme) s.nvme_paths = {folder.string()};
    s.allow_memory_backed = true;
    s.gradient_accumulation_steps = kMicroBatches;
    return s;
  };
  const auto errors = run_ranks(world, HostFlavour::kLate, settings, [&](Rank& rank) {
    std::uint64_t joined_bytes = 0;
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      const std::uint64_t elements = (g % 3 + 1) * 65536;
      rank.engine.add_group("h." + std::to_string(g),
                            {{"w", DType::kBf16, {static_cast<std::int64_t>(elements)}, {}}});
      joined_bytes += 2 * elements;
    }
    rank.engine.freeze();
    load_all(rank.engine);
    for (std::uint32_t s = 0; s < kWarmUp; ++s) step(rank.engine);
    const Stats before = stats_of_whole_steps(rank.engine);
    for (std::uint32_t s = 0; s < kSteps; ++s) step(rank.engine);
    const Stats after = stats_of_whole_steps(rank.engine);
    const PlanReport plan = rank.engine.plan();
    const std::uint64_t sent = after.all_gathers.sent_bytes + after.all_to_alls.sent_bytes -
                               before.all_gathers.sent_bytes - before.all_to_alls.sent_bytes;
    const std::uint64_t read = after.nvme_read_bytes - before.nvme_read_bytes;
    const double planned_sent = kSteps * plan.sent_bytes_per_step;
    const double planned_read = kSteps * plan.nvme_read_bytes_per_step;
    // With fewer slots than groups, a group that is read early may take the slot of another.
    const double share = stage == 3 && place == OffloadDevice::kNvme ? 0.3 : 0;
    EXPECT_NEAR(static_cast<double>(sent), planned_sent, share * planned_sent);
    // An update that comes late hands its weights to no gather, which then reads 2 bytes beside the
    // 12 of each parameter.
    EXPECT_NEAR(static_cast<double>(read), planned_read, 0.2 * planned_read);
    std::uint64_t kept = 0;
    for (const PlanRow& row : plan.rows) kept += row.what == "joined parameters" ? row.bytes : 0;
    EXPECT_EQ(kept, stage < 3 ? joined_bytes : 0);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}
INSTANTIATE_TEST_SUITE_P(
    Worlds, RanksStages,
    ::testing::Combine(::testing::Values(2u, 3u), ::testing::Values(1u, 2u, 3u),
                       ::testing::Values(OffloadDevice::kNone, OffloadDevice::kNvme)));

// ---- nodes that keep a copy of what they have joined ----

class RanksNodes : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kGroups = 5, kMicroBatches = 2;
  static Settings settings(std::uint32_t node_ranks, OffloadDevice place,
                           const testing::TemporaryDirectory& folder) {
    Settings s;
    s.zero_hpz_partition_size = node_ranks;
    s.offload_optimizer = s.offload_parameters = place;
    if (place == OffloadDevice::kNvme) s.nvme_paths = {folder.string()};
    s.allow_memory_backed = true;
    s.gradient_accumulation_steps = kMicroBatches;
    s.prefetch_groups = 1;
    return s;
  }
  static void begin(Engine& engine) {
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      const std::int64_t elements = (g % 3 + 1) * 65536;
      engine.add_group("h." + std::to_string(g), {{"w", DType::kBf16, {elements}, {}}});
    }
    engine.freeze();
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      engine.load({g}, [](ParameterId id, std::span<std::byte> out) {
        for (std::size_t b = 0; b < out.size(); ++b)
          out[b] = static_cast<std::byte>(b % 2 == 0 ? b / 509 + 31 * id.index : 0x3c);
      });
    }
  }
  static void forward(Engine& engine) {
    for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
  }
  // Returns a sum of the weights that it has seen.
  static std::uint64_t backward(Rank& rank) {
    static const std::vector<std::uint16_t> gradient(3 * 65536, 0x3c00);
    std::uint64_t sum = 0;
    for (std::uint32_t g = kGroups; g-- > 0;) {
      const Gathered whole = rank.engine.gather({g});
      const DeviceSpan bytes = whole.bytes({g});
      std::vector<std::byte> seen(bytes.size_bytes);
      rank.device.copy({}, seen.data(), bytes.data, seen.size());
      rank.device.synchronize({});
      for (const std::byte one : seen) sum = sum * 31 + static_cast<std::uint64_t>(one);
      rank.engine.add_gradient({g}, gradient.data(), DType::kBf16);
    }
    return sum;
  }
  static void step(Rank& rank) {
    for (std::uint32_t m = 0; m < kMicroBatches; ++m) {
      forward(rank.engine);
      backward(rank);
    }
    rank.engine.step({.learning_rate = 0.1f});
  }
};

// (world, ranks of a node, in memory or on NVMe)
class RanksNodesSent : public RanksNodes,
                       public ::testing::WithParamInterface<
                           std::tuple<std::uint32_t, std::uint32_t, OffloadDevice>> {};

// Only the first gather of a step, and the reductions, leave the node; only the first reads.
TEST_P(RanksNodesSent, IsWhatThePlanSays) {
  constexpr std::uint32_t kWarmUp = 3, kSteps = 2;
  const auto [world, node_ranks, place] = GetParam();
  const testing::TemporaryDirectory folder;
  const auto settings_of = [&, node_ranks = node_ranks, place = place](std::uint32_t) {
    return settings(node_ranks, place, folder);
  };
  std::vector<std::string> hashes(world);
  const auto errors = run_ranks(world, HostFlavour::kLate, settings_of, [&](Rank& rank) {
    begin(rank.engine);
    for (std::uint32_t s = 0; s < kWarmUp; ++s) step(rank);
    const Stats before = stats_of_whole_steps(rank.engine);
    for (std::uint32_t s = 0; s < kSteps; ++s) step(rank);
    const Stats after = stats_of_whole_steps(rank.engine);
    const PlanReport plan = rank.engine.plan();
    const auto of_steps = [&](const auto& bytes) {
      return static_cast<double>(bytes(after.all_gathers) + bytes(after.all_to_alls) -
                                 bytes(before.all_gathers) - bytes(before.all_to_alls));
    };
    const double sent = of_steps([](const CollectiveCalls& calls) { return calls.sent_bytes; });
    const double beyond =
        of_steps([](const CollectiveCalls& calls) { return calls.sent_to_other_nodes_bytes; });
    const auto read = static_cast<double>(after.nvme_read_bytes - before.nvme_read_bytes);
    // What leaves a node does not depend on slots. A group that is read early may take the slot of
    // another, which is then joined once more within the node.
    EXPECT_EQ(beyond, kSteps * plan.sent_to_other_nodes_bytes_per_step);
    EXPECT_GT(beyond, 0);
    EXPECT_LT(beyond, sent);
    EXPECT_NEAR(sent, kSteps * plan.sent_bytes_per_step, 0.3 * sent);
    EXPECT_NEAR(read, kSteps * plan.nvme_read_bytes_per_step, 0.2 * read);
    std::uint64_t kept = 0;
    for (const PlanRow& row : plan.rows)
      kept += row.what == "parameters kept for the node" ? row.bytes : 0;
    EXPECT_GT(kept, 0u);
    hashes[rank.number] = rank.engine.hash_parameters() + rank.engine.hash_optimizer_state();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  std::string without;
  run_ranks(
      world, HostFlavour::kPrompt, [&](std::uint32_t) { return settings(1, place, folder); },
      [&](Rank& rank) {
        begin(rank.engine);
        for (std::uint32_t s = 0; s < kWarmUp + kSteps; ++s) step(rank);
        const std::string hash = rank.engine.hash_parameters() + rank.engine.hash_optimizer_state();
        if (rank.number == 0) without = hash;
      });
  for (const std::string& hash : hashes) EXPECT_EQ(hash, without);
}
INSTANTIATE_TEST_SUITE_P(Worlds, RanksNodesSent,
                         ::testing::Values(std::tuple(4u, 2u, OffloadDevice::kCpu),
                                           std::tuple(4u, 2u, OffloadDevice::kNvme),
                                           std::tuple(6u, 3u, OffloadDevice::kNvme)));

// A rank that sleeps in mid-step loses what it kept; the others have not slept. All join anew.
TEST_F(RanksNodes, JoinAnewWhereARankHasSlept) {
  const testing::TemporaryDirectory folder;
  std::vector<std::string> hashes;
  std::uint64_t with = 0, without = 0;  // bytes to other nodes
  for (const bool sleeps : {false, true}) {
    const auto settings_of = [&](std::uint32_t) {
      Settings s = settings(2, OffloadDevice::kNvme, folder);
      s.rank_agreement = RankOrder::kEach;  // else all ranks sleep alike
      return s;
    };
    std::vector<std::uint64_t> joined(4), sums(4);
    const auto errors = run_ranks(4, HostFlavour::kLate, settings_of, [&](Rank& rank) {
      begin(rank.engine);
      for (std::uint32_t s = 0; s < 4; ++s) {
        forward(rank.engine);
        if (sleeps && rank.number == 1) {
          rank.engine.sleep();
          rank.engine.wake();
        }
        sums[rank.number] = 31 * sums[rank.number] + backward(rank);
        rank.engine.step({.learning_rate = 0.1f});
      }
      joined[rank.number] = rank.engine.stats().all_gathers.sent_to_other_nodes_bytes;
      const std::string hash = rank.engine.hash_parameters() + rank.engine.hash_optimizer_state();
      if (rank.number == 0) hashes.push_back(hash);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_EQ(sums, std::vector<std::uint64_t>(4, sums[0]));
    hashes.back() += std::to_string(sums[0]);
    (sleeps ? with : without) = joined[0];
  }
  EXPECT_GT(with, without);
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[1], hashes[0]);
}

TEST_F(RanksNodes, AreRefusedWhereTheyDoNotMakeUpTheWorld) {
  const testing::TemporaryDirectory folder;
  const auto settings_of = [&](std::uint32_t) { return settings(3, OffloadDevice::kCpu, folder); };
  for (const std::string& error :
       run_ranks(4, HostFlavour::kPrompt, settings_of, [&](Rank& rank) { begin(rank.engine); })) {
    EXPECT_NE(error.find("zero_hpz_partition_size is 3, and 4 ranks do not make up"),
              std::string::npos)
        << error;
  }
}

// ---- transfers in fewer bits ----

// (world, stage, ranks of a node)
class RanksQuantised : public RanksNodes,
                       public ::testing::WithParamInterface<
                           std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> {};

// 257/256 bytes for a parameter's 2, and 129/256 for those of its gradient.
TEST_P(RanksQuantised, SendWhatThePlanSays) {
  constexpr std::uint32_t kWarmUp = 3, kSteps = 2;
  const auto [world, stage, node_ranks] = GetParam();
  const testing::TemporaryDirectory folder;
  std::array<double, 2> gathered{}, reduced{}, beyond{};
  std::vector<std::uint64_t> sums(world);
  for (const bool quantised : {false, true}) {
    const auto settings_of = [&, stage = stage, node_ranks = node_ranks](std::uint32_t) {
      Settings s = settings(node_ranks, OffloadDevice::kCpu, folder);
      s.zero_stage = stage;
      s.zero_quantized_weights = s.zero_quantized_gradients = quantised;
      s.prefetch_groups = kGroups;  // which have slots for all of them
      return s;
    };
    const auto errors = run_ranks(world, HostFlavour::kLate, settings_of, [&](Rank& rank) {
      begin(rank.engine);
      for (std::uint32_t s = 0; s < kWarmUp; ++s) step(rank);
      const Stats before = rank.engine.stats();
      std::uint64_t sum = 0;
      for (std::uint32_t s = 0; s < kSteps; ++s) {
        for (std::uint32_t m = 0; m < kMicroBatches; ++m) {
          forward(rank.engine);
          sum = sum * 31 + backward(rank);
        }
        rank.engine.step({.learning_rate = 0.1f});
      }
      const Stats after = rank.engine.stats();
      const PlanReport plan = rank.engine.plan();
      const auto sent = [](const CollectiveCalls& a, const CollectiveCalls& b) {
        return static_cast<double>(a.sent_bytes - b.sent_bytes);
      };
      const double weights = sent(after.all_gathers, before.all_gathers);
      const double gradients = sent(after.all_to_alls, before.all_to_alls);
      EXPECT_EQ(weights + gradients, kSteps * plan.sent_bytes_per_step);
      const auto outside = static_cast<double>(after.collective_sent_to_other_nodes_bytes -
                                               before.collective_sent_to_other_nodes_bytes);
      if (quantised) sums[rank.number] = sum;
      if (rank.number != 0) return;
      gathered[quantised] = weights;
      reduced[quantised] = gradients;
      beyond[quantised] = outside;
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  EXPECT_EQ(sums, std::vector<std::uint64_t>(world, sums[0])) << "all ranks see the same weights";
  EXPECT_DOUBLE_EQ(reduced[1] / reduced[0], 129.0 / 512);
  if (node_ranks == 1) {
    EXPECT_DOUBLE_EQ(gathered[1] / gathered[0], 257.0 / 512);
  } else {  // within a node, they are sent as they are
    EXPECT_LT(gathered[1], gathered[0]);
    EXPECT_LT(beyond[1] / beyond[0], 0.4);
  }
}
INSTANTIATE_TEST_SUITE_P(Worlds, RanksQuantised,
                         ::testing::Values(std::tuple(2u, 3u, 1u), std::tuple(3u, 2u, 1u),
                                           std::tuple(4u, 3u, 2u)));

// A NaN in a gradient still stops the step, and says whose it was.
TEST_F(RanksNodes, QuantisedNanStopsTheStep) {
  const testing::TemporaryDirectory folder;
  const auto settings_of = [&](std::uint32_t) {
    Settings s = settings(1, OffloadDevice::kCpu, folder);
    s.zero_quantized_gradients = true;
    s.gradient_accumulation_steps = 1;
    return s;
  };
  const auto errors = run_ranks(2, HostFlavour::kPrompt, settings_of, [&](Rank& rank) {
    begin(rank.engine);
    std::vector<std::uint16_t> gradient(3 * 65536, 0x3c00);
    for (std::uint32_t g = kGroups; g-- > 0;) {
      (void)rank.engine.gather({g});
      gradient[1000] = g == 2 && rank.number == 1 ? 0x7fc0 : 0x3c00;
      rank.engine.add_gradient({g}, gradient.data(), DType::kBf16);
    }
    rank.engine.step({.learning_rate = 0.1f});
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("h.2.w"), std::string::npos) << error;
}
}  // namespace
}  // namespace headrace::ranks_sent_test
