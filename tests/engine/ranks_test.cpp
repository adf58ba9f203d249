// SPDX-License-Identifier: Apache-2.0
// ranks_test: several ranks, each with gradients and leases of its own: what one rank lacks counts
// as zero, what differs where it must not is named.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>

#include "collective/nccl_world.hpp"
#include "engine/parts.hpp"
#include "kernels/number_formats.hpp"
#include "partition/partition.hpp"
#include "support/computing_host.hpp"
#include "support/failing_drive.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace {
namespace {
using collective::NcclFlavour;
using device::ComputingDevice;
using device::HostFlavour;

// Runs `body` once per rank, each on a thread with a device and an engine of its own. Returns what
// each rank threw, if it did.
struct Rank {
  std::uint32_t number;
  ComputingDevice& device;
  Engine& engine;
};
struct World {
  std::vector<std::shared_ptr<ComputingDevice>> hosts;
  std::vector<std::shared_ptr<Collective>> ranks;
};
World over_threads(std::uint32_t world, HostFlavour flavour) {
  World made;
  for (std::uint32_t r = 0; r < world; ++r) {
    made.hosts.push_back(device::make_computing_host(
        {.flavour = flavour, .seed = r + 1, .late_microseconds_max = 30}));
  }
  made.ranks = collective::make_collective_threads({made.hosts.begin(), made.hosts.end()},
                                                   std::chrono::seconds(60));
  return made;
}
World over_nccl(std::uint32_t world, NcclFlavour flavour) {
  const auto of_nccl = collective::nccl_world(world, flavour);
  World made{{}, collective::nccl_collectives(of_nccl, std::chrono::seconds(60))};
  for (const auto& rank : of_nccl.ranks) made.hosts.push_back(rank.device);
  return made;
}

std::vector<std::string> run_ranks(World world,
                                   const std::function<Settings(std::uint32_t rank)>& settings,
                                   const std::function<void(Rank&)>& body,
                                   const std::vector<engine::EngineParts>& parts = {}) {
  auto& [hosts, ranks] = world;
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        Engine engine(engine::engine_with_parts(
            settings(r), EngineOptions{.device = hosts[r], .collective = ranks[r]},
            parts.empty() ? engine::EngineParts{} : parts[r]));
        Rank rank{r, *hosts[r], engine};
        body(rank);
        engine.close();
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      ranks[r].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}
std::vector<std::string> run_ranks(std::uint32_t world, HostFlavour flavour,
                                   const std::function<Settings(std::uint32_t rank)>& settings,
                                   const std::function<void(Rank&)>& body,
                                   const std::vector<engine::EngineParts>& parts = {}) {
  return run_ranks(over_threads(world, flavour), settings, body, parts);
}
Settings plain(std::uint32_t) { return {}; }

void load_all(Engine& engine) {
  for (std::uint32_t g = 0; g < engine.group_count(); ++g) {
    engine.load({g}, [](ParameterId, std::span<std::byte> out) {
      std::ranges::fill(out, std::byte{0x3c});  // 0.0115 in both dtypes
    });
  }
}

// Each element is written by one rank, and what one rank loads whole has the same hash.
TEST(RanksLoad, OfShardsWritesEachElementOnce) {
  const auto value = [](ParameterId id, std::uint64_t byte) {
    return static_cast<std::byte>(byte * 7 + id.index * 31 + byte / 251);
  };
  const auto register_groups = [](Engine& engine) {
    engine.add_group("a", {{"w", DType::kBf16, {3, 65536}, {}},
                           {"v", DType::kF32, {70'000}, {}},
                           {"s", DType::kBf16, {11}, {}}});
    engine.add_group("b", {{"t", DType::kF32, {5}, {}}});
    engine.freeze();
  };
  std::string whole;
  run_ranks(1, HostFlavour::kPrompt, plain, [&](Rank& rank) {
    register_groups(rank.engine);
    for (const GroupId group : {GroupId{0}, GroupId{1}}) {
      rank.engine.load(group, [&](ParameterId id, std::span<std::byte> out) {
        for (std::uint64_t at = 0; at < out.size(); ++at) out[at] = value(id, at);
      });
    }
    whole = rank.engine.hash_parameters();
  });
  for (const std::uint32_t world : {1u, 2u, 3u, 4u}) {
    std::mutex mutex;
    std::map<std::uint32_t, std::vector<int>> written;  // how often, by parameter
    const auto errors = run_ranks(world, HostFlavour::kLate, plain, [&](Rank& rank) {
      register_groups(rank.engine);
      for (const GroupId group : {GroupId{0}, GroupId{1}}) {
        rank.engine.load(group, [&](ParameterId id, std::uint64_t first, std::span<std::byte> out) {
          const std::uint64_t bytes = size_bytes(rank.engine.spec(id).dtype);
          for (std::uint64_t at = 0; at < out.size(); ++at) out[at] = value(id, first * bytes + at);
          const std::lock_guard lock(mutex);
          auto& counts = written[id.index];
          counts.resize(rank.engine.spec(id).elements());
          for (std::uint64_t at = 0; at < out.size() / bytes; ++at) ++counts[first + at];
        });
      }
      EXPECT_EQ(rank.engine.hash_parameters(), whole) << world;
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_EQ(written.size(), 4u);
    for (const auto& [parameter, counts] : written)
      EXPECT_EQ(std::ranges::count(counts, 1), std::ssize(counts)) << parameter;
  }
}

// The collective is made without a device, whose work is done later than it is queued.
TEST(RanksGather, IsOrderedOnTheEnginesDevice) {
  constexpr std::uint32_t kWorld = 2, kRounds = 20;
  World world = over_threads(kWorld, HostFlavour::kLate);
  const auto transports = make_thread_transports(kWorld);
  for (std::uint32_t r = 0; r < kWorld; ++r)
    world.ranks[r] = make_collective({.transport = transports[r]});
  const auto errors = run_ranks(std::move(world), plain, [](Rank& rank) {
    const GroupId group = rank.engine.add_group("h", {{"w", DType::kF32, {2 * 65536}, {}}});
    rank.engine.freeze();
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      rank.engine.load(group, [&](ParameterId, std::span<std::byte> out) {
        std::ranges::fill(out, static_cast<std::byte>(round));
      });
      const Gathered whole = rank.engine.gather(group);
      std::vector<std::byte> seen(2 * 65536 * sizeof(float));
      rank.device.copy({}, seen.data(), whole.bytes({0}).data, seen.size());
      rank.device.synchronize({});
      EXPECT_EQ(std::ranges::count(seen, static_cast<std::byte>(round)), std::ssize(seen)) << round;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// One rank, whose collective holds memory as one does that stages a device's bytes.
TEST(RanksPlan, CountsWhatTheCollectiveHolds) {
  struct Staging final : Collective {
    std::uint32_t rank() const noexcept override { return 0; }
    std::uint32_t world_size() const noexcept override { return 1; }
    void all_gather(CollectiveTag, Stream, std::span<const DeviceSpan>) override {}
    void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override {}
    void exchange(CollectiveTag, std::span<const std::byte>, std::span<std::byte>) override {}
    void abort(std::string_view) noexcept override {}
    std::uint64_t host_bytes() const noexcept override { return 3 << 20; }
  };
  std::uint64_t planned[2] = {}, held[2] = {};
  for (const bool stages : {false, true}) {
    EngineOptions options;
    if (stages) options.collective = std::make_shared<Staging>();
    Engine engine({}, options);
    engine.add_group("h", {{"w", DType::kBf16, {1000}, {}}});
    engine.freeze();
    planned[stages] = engine.plan().host_bytes;
    held[stages] = engine.stats().engine_bytes;
    EXPECT_EQ(engine.plan().to_text().find("the collective's own") != std::string::npos, stages);
  }
  EXPECT_EQ(planned[true], planned[false] + (3 << 20));
  EXPECT_EQ(held[true], held[false] + (3 << 20));
}

// A trainer's own collective, with a place in the world that no rank has.
TEST(RanksPlace, OutsideOfTheWorldIsRefused) {
  struct Misplaced final : Collective {
    explicit Misplaced(std::uint32_t world) : size(world) {}
    const std::uint32_t size;
    std::uint32_t rank() const noexcept override { return 2; }
    std::uint32_t world_size() const noexcept override { return size; }
    void all_gather(CollectiveTag, Stream, std::span<const DeviceSpan>) override {}
    void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override {}
    void exchange(CollectiveTag, std::span<const std::byte>, std::span<std::byte>) override {}
    void abort(std::string_view) noexcept override {}
  };
  for (const std::uint32_t world : {0u, 2u}) {
    try {
      Engine engine({}, {.collective = std::make_shared<Misplaced>(world)});
      ADD_FAILURE() << "accepted rank 2 of " << world;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_NE(
          std::string(error.what()).find("rank() 2 and world_size() " + std::to_string(world)),
          std::string::npos)
          << error.what();
    }
  }
}

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

// ---- gradients that one rank has and another has not ----

constexpr std::uint32_t kGroups = 3, kSteps = 3;
constexpr ParameterId kFrozen = {5};
void register_model(Engine& engine) {
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    engine.add_group("h." + std::to_string(g), {{"w", DType::kBf16, {300, 300}, {}},
                                                {"b", DType::kF32, {300}, {}},
                                                {"s", DType::kBf16, {700}, {}}});
  }
  engine.set_frozen(kFrozen, true);
}

// Which gradients there are, drawn from a seed: of every group some parameters are missing on some
// ranks, on some ranks whole groups, some everywhere.
class Gradients {
 public:
  Gradients(std::uint64_t seed, std::uint32_t accumulation) : seed_(seed), passes_(accumulation) {}
  bool has(std::uint32_t rank, std::uint32_t step, std::uint32_t pass, ParameterId id) const {
    if (id == kFrozen) return false;
    const std::uint32_t group = id.index / 3;
    const bool whole_group = draw(rank, step, pass, 100 + group) % 4 != 0;
    const bool nobody = draw(50, step, 0, id.index) % 6 == 0;
    return whole_group && !nobody && draw(rank, step, pass, id.index) % 3 != 0;
  }
  // Adds small whole numbers: their sums are exact in any order, in bf16 too.
  void add_to(std::span<float> values, std::uint32_t rank, std::uint32_t step, std::uint32_t pass,
              ParameterId id) const {
    const std::uint64_t seed = draw(rank, step, pass, id.index);
    for (std::size_t e = 0; e < values.size(); ++e)
      values[e] += static_cast<float>(static_cast<int>(testing::noise(seed, e) * 8));
  }
  std::uint32_t passes() const { return passes_; }

 private:
  std::uint64_t draw(std::uint32_t rank, std::uint32_t step, std::uint32_t pass,
                     std::uint32_t of) const {
    std::seed_seq seeds{static_cast<std::uint32_t>(seed_), rank, step, pass, of};
    std::mt19937_64 random(seeds);
    return random();
  }
  std::uint64_t seed_;
  std::uint32_t passes_;
};

struct Outcome {
  std::vector<StepResult> steps;
  // Masters and first moments by parameter and element; a rank gives its shard.
  std::map<std::tuple<std::uint32_t, int>, std::vector<float>> values;
};
void collect(Engine& engine, Outcome& outcome) {
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    if (engine.spec({i}).frozen) {  // on every rank, whoever has its elements
      const auto ignore = [](std::uint64_t, std::span<const std::byte>) {};
      EXPECT_THROW(engine.store({i}, Content::kMaster, ignore), Error);
      continue;
    }
    for (const Content content : {Content::kMaster, Content::kExpAvg}) {
      auto& values = outcome.values[{i, static_cast<int>(content)}];
      values.resize(engine.spec({i}).elements());
      engine.store({i}, content, [&](std::uint64_t first, std::span<const std::byte> stretch) {
        std::memcpy(values.data() + first, stretch.data(), stretch.size());
      });
    }
  }
}

Settings accumulating(std::uint32_t passes) {
  Settings settings;
  settings.offload_optimizer = OffloadDevice::kCpu;
  settings.offload_parameters = OffloadDevice::kCpu;
  settings.prefetch_groups = 1;
  settings.gradient_accumulation_steps = passes;
  return settings;
}

// What one rank would do with the sums.
Outcome train_alone(const Gradients& gradients, std::uint32_t world) {
  Outcome outcome;
  Engine engine(accumulating(gradients.passes()));
  register_model(engine);
  engine.freeze();
  load_all(engine);
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
      std::vector<float> sum(engine.spec({i}).elements());
      bool any = false;
      for (std::uint32_t pass = 0; pass < gradients.passes(); ++pass) {
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          if (!gradients.has(rank, step, pass, {i})) continue;
          any = true;
          gradients.add_to(sum, rank, step, pass, {i});
        }
      }
      if (any) engine.add_gradient({i}, sum.data(), DType::kF32);
    }
    outcome.steps.push_back(engine.step({.learning_rate = 1e-2f, .max_norm = 1.0f}));
  }
  collect(engine, outcome);
  return outcome;
}

void expect_loaded(DeviceSpan weights) {
  const auto* const bytes = static_cast<const std::byte*>(weights.data);
  EXPECT_TRUE(std::all_of(bytes, bytes + weights.size_bytes,
                          [](std::byte value) { return value == std::byte{0x3c}; }));
}

void train_rank(Rank& rank, const Gradients& gradients, Outcome& outcome) {
  Engine& engine = rank.engine;
  register_model(engine);
  engine.freeze();
  load_all(engine);
  const Stream stream = rank.device.create_stream();
  std::vector<std::vector<float>> handed(engine.parameter_count());
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    for (std::uint32_t pass = 0; pass < gradients.passes(); ++pass) {
      for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g}, stream);
      for (std::uint32_t g = kGroups; g-- > 0;) {
        const Gathered lease = engine.gather({g}, stream);
        rank.device.synchronize(stream);
        for (const ParameterId id : engine.parameters({g})) {
          if (id == kFrozen) expect_loaded(lease.bytes(id));
          if (!gradients.has(rank.number, step, pass, id)) continue;
          auto& values = handed[id.index];
          values.assign(engine.spec(id).elements(), 0.0f);
          gradients.add_to(values, rank.number, step, pass, id);
          engine.add_gradient(id, values.data(), DType::kF32, stream);
        }
      }
      rank.device.synchronize(stream);
    }
    outcome.steps.push_back(engine.step({.learning_rate = 1e-2f, .max_norm = 1.0f}));
  }
  collect(engine, outcome);
}

// What several ranks train is what one trains with the sums.
void expect_sums(World made, std::uint64_t seed, std::uint32_t passes) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto world = static_cast<std::uint32_t>(made.ranks.size());
  const Gradients gradients(seed, passes);
  const Outcome expected = train_alone(gradients, world);
  std::vector<Outcome> outcomes(world);
  const auto errors = run_ranks(
      std::move(made), [&](std::uint32_t) { return accumulating(passes); },
      [&](Rank& rank) { train_rank(rank, gradients, outcomes[rank.number]); });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  // A rank's shard is its own part of every vector, zeros (never a master's value) elsewhere.
  Outcome joined = outcomes[0];
  for (std::uint32_t r = 1; r < world; ++r) {
    for (auto& [key, values] : joined.values) {
      const auto& piece = outcomes[r].values.at(key);
      for (std::size_t e = 0; e < values.size(); ++e) values[e] += piece[e];
    }
  }
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.steps[step].parameters_updated, expected.steps[step].parameters_updated);
      EXPECT_EQ(outcome.steps[step].gradient_norm, expected.steps[step].gradient_norm);
    }
  }
  for (const auto& [key, values] : expected.values)
    EXPECT_TRUE(values == joined.values.at(key)) << "parameter " << std::get<0>(key);
}

class RanksGradients
    : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, HostFlavour>> {};

TEST_P(RanksGradients, ThatOneRankLacksCountAsZeros) {
  const auto [world, passes, flavour] = GetParam();
  for (std::uint64_t seed = 1; seed <= 2; ++seed)
    expect_sums(over_threads(world, flavour), seed, passes);
}

TEST(RanksOverNccl, TrainToTheSameBits) {
  expect_sums(over_nccl(2, NcclFlavour::kLate), 1, 4);
  expect_sums(over_nccl(3, NcclFlavour::kParallel), 2, 1);
}

INSTANTIATE_TEST_SUITE_P(World, RanksGradients,
                         ::testing::Combine(::testing::Values(2u, 3u), ::testing::Values(1u, 4u),
                                            ::testing::Values(HostFlavour::kPrompt,
                                                              HostFlavour::kLate)));

// The state after a step with one micro-batch in all, whose gradient is f32: only rank 0 has it.
std::string after_one_micro_batch(std::uint32_t world, std::uint32_t accumulation) {
  std::string hash;
  const auto errors = run_ranks(
      world, HostFlavour::kPrompt, [&](std::uint32_t) { return accumulating(accumulation); },
      [&](Rank& rank) {
        Engine& engine = rank.engine;
        const GroupId group = engine.add_group("g", {{"w", DType::kBf16, {3 * 65536}, {}}});
        engine.freeze();
        load_all(engine);
        const std::vector<float> gradient(3 * 65536, 1.0f + 0x1p-12f);  // 1 in bf16
        (void)engine.gather(group);
        if (rank.number == 0) engine.add_gradient({0}, gradient.data(), DType::kF32);
        engine.step({});
        const std::string of_rank = engine.hash_optimizer_state();
        if (rank.number == 0) hash = of_rank;
      });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return hash;
}

// As docs/ranks.md says: one rank that does not accumulate rounds the gradient to bf16.
TEST(RanksGradients, OfOneMicroBatchInAllAreThoseOfARankThatAccumulates) {
  const std::string accumulates = after_one_micro_batch(1, 2);
  EXPECT_NE(after_one_micro_batch(1, 1), accumulates);
  EXPECT_EQ(after_one_micro_batch(1, 3), accumulates);
  EXPECT_EQ(after_one_micro_batch(2, 1), accumulates);
  EXPECT_EQ(after_one_micro_batch(3, 1), accumulates);
}

TEST(RanksGradients, OfOneGroupMayComeFromSeveralThreads) {
  const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [](Rank& rank) {
    Engine& engine = rank.engine;
    register_model(engine);
    engine.set_frozen(kFrozen, false);
    for (std::uint32_t g = 0; g < kGroups; ++g) engine.expect_repeated_gradients({g});
    engine.freeze();
    load_all(engine);
    const std::vector<float> ones(90000, 1.0f);
    for (int round = 0; round < 10; ++round) {
      const auto arrive = [&] {
        for (const ParameterId id : engine.parameters({1}))
          engine.add_gradient(id, ones.data(), DType::kF32);
      };
      std::thread other(arrive);
      arrive();
      other.join();
      // Two threads on each of two ranks.
      EXPECT_EQ(engine.step({}).gradient_norm, std::sqrt(16.0 * (90000 + 300 + 700)));
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// The example of rank_calls.hpp. Ranks 0 and 2 come to group 0 while rank 1 brings a gradient of
// group 1; what it then adds to group 0 comes before rank 2's: (1e8 + 1) - 1e8 is 0 in f32, and
// (1e8 - 1e8) + 1 is not.
TEST(RanksGradients, OfALowerRankComeFirstAlsoWhereItBringsMoreGroups) {
  std::array<double, 3> norms = {};
  const auto errors = run_ranks(3, HostFlavour::kPrompt, plain, [&](Rank& rank) {
    Engine& engine = rank.engine;
    for (const char* name : {"h.0", "h.1"}) engine.add_group(name, {{"w", DType::kF32, {1}, {}}});
    engine.freeze();
    load_all(engine);
    for (std::uint32_t g = 0; g < 2; ++g) (void)engine.gather({g});
    const float of_group_1 = 3, of_group_0 = std::array{1e8f, 1.0f, -1e8f}[rank.number];
    if (rank.number == 1) engine.add_gradient({1}, &of_group_1, DType::kF32);
    engine.add_gradient({0}, &of_group_0, DType::kF32);
    norms[rank.number] = engine.step({}).gradient_norm;
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const double norm : norms) EXPECT_EQ(norm, 3);
}

TEST(RanksGradients, AreDiscardedOnAllRanksTogether) {
  const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [](Rank& rank) {
    Engine& engine = rank.engine;
    register_model(engine);
    engine.freeze();
    load_all(engine);
    const std::vector<float> ones(90000, 1.0f);
    // Rank 0 has two groups, the first of which it can only reduce when rank 1 comes along.
    engine.add_gradient(engine.parameter("h.2.w"), ones.data(), DType::kF32);
    if (rank.number == 0) engine.add_gradient(engine.parameter("h.1.w"), ones.data(), DType::kF32);
    engine.discard_gradients();
    const StepResult nothing = engine.step({});
    EXPECT_EQ(nothing.parameters_updated, 0u);
    EXPECT_EQ(nothing.gradient_norm, 0);
    engine.add_gradient(engine.parameter("h.2.b"), ones.data(), DType::kF32);
    EXPECT_EQ(engine.step({}).gradient_norm, std::sqrt(4.0 * 300));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// ---- a failure on one rank ----

TEST(RanksStep, CanBeRepeatedOnTheRankWhereItFailed) {
  const testing::TemporaryDirectory directory;
  Settings settings;
  settings.offload_optimizer = OffloadDevice::kNvme;
  settings.update_mode = UpdateMode::kBarrier;
  settings.nvme_paths = {directory.string()};
  engine::EngineParts failing;
  failing.make_drive = [](async::Conductor& conductor, swap::DriveOptions options) {
    // The first read, and its repetition too.
    return std::make_unique<testing::FailingDrive>(
        conductor, std::move(options), [reads = 0](const swap::Transfer& transfer) mutable {
          return transfer.kind == swap::IoKind::kRead && reads++ < 2;
        });
  };
  std::vector<std::string> hashes(2);
  const auto errors = run_ranks(
      2, HostFlavour::kPrompt, [&](std::uint32_t) { return settings; },
      [&](Rank& rank) {
        // In one tile, so that the step's first read is before any update.
        rank.engine.add_group("g", {{"w", DType::kF32, {300}, {}}});
        rank.engine.freeze();
        load_all(rank.engine);
        const std::vector<float> gradient(300, 1.0f);
        rank.engine.add_gradient({0}, gradient.data(), DType::kF32);
        if (rank.number == 0) {
          EXPECT_THROW(rank.engine.step({}), Error);
          // The other rank has made this step, or will, with the values that were agreed on.
          for (const auto& change :
               std::vector<std::function<void()>>{[&] { rank.engine.set_hyperparameters({0}, {}); },
                                                  [&] { rank.engine.set_step_count({0}, 7); }}) {
            try {
              change();
              ADD_FAILURE() << "a change before the step was repeated";
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), Code::kWrongState);
              EXPECT_NE(std::string(error.what()).find("step 1 failed"), std::string::npos);
            }
          }
        }
        EXPECT_EQ(rank.engine.step({}).parameters_updated, 1u);
        const Gathered lease = rank.engine.gather({0});
        const DeviceSpan w = lease.bytes({0});
        hashes[rank.number].assign(static_cast<const char*>(w.data), w.size_bytes);
      },
      {failing, {}});
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(hashes[0], hashes[1]);
}

// ---- leases ----

// What is cached hangs on leases and on time, so ranks may differ in whether a group must be
// joined.
TEST(RanksGather, MayDifferInWhatTheyHold) {
  const auto errors = run_ranks(
      2, HostFlavour::kPrompt, [](std::uint32_t) { return accumulating(1); },
      [](Rank& rank) {
        Engine& engine = rank.engine;
        register_model(engine);
        engine.freeze();
        load_all(engine);
        Gathered held = engine.gather({2});
        if (rank.number == 1) held.release();
        std::mt19937 random(5);
        for (int i = 0; i < 40; ++i) {
          const GroupId group{static_cast<std::uint32_t>(random() % kGroups)};
          const Gathered lease = engine.gather(group);
          const DeviceSpan whole = lease.bytes(engine.parameters(group)[0]);
          const auto* bytes = static_cast<const std::byte*>(whole.data);
          for (std::size_t b = 0; b < whole.size_bytes; b += 999)
            ASSERT_EQ(bytes[b], std::byte{0x3c});
        }
      });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// A second rank that does what this one does, and whose pieces arrive in stream order, not before.
class MirrorRank final : public Collective {
 public:
  explicit MirrorRank(std::shared_ptr<ComputingDevice> device, bool takes_any_thread = false)
      : device_(std::move(device)), takes_any_thread_(takes_any_thread) {}
  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t world_size() const noexcept override { return 2; }
  void all_gather(CollectiveTag, Stream stream, std::span<const DeviceSpan> whole) override {
    device_->launch(stream, [own = whole[0], other = whole[1]] {
      std::memcpy(other.data, own.data, other.size_bytes);
    });
  }
  void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override {}
  void exchange(CollectiveTag, std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::ranges::copy(mine, all.begin());
    std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(mine.size()));
  }
  void abort(std::string_view) noexcept override {}
  bool takes_any_thread() const noexcept override { return takes_any_thread_; }

 private:
  std::shared_ptr<ComputingDevice> device_;
  const bool takes_any_thread_;
};

// Joins on a stream of the engine's own, and a trainer that does not wait for it but in gather().
TEST(RanksGather, ThatIsJoinedAheadWaitsForTheJoin) {
  constexpr std::uint32_t kGroups = 3;
  constexpr std::size_t kBytes = 2 * 65536 * 4;
  std::uint64_t ahead = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto device = device::make_computing_host(
        {.flavour = HostFlavour::kLate, .seed = seed, .late_microseconds_max = 200});
    Settings settings = accumulating(1);  // two gather slots for three groups
    Engine engine(settings,
                  {.device = device, .collective = std::make_shared<MirrorRank>(device, true)});
    for (std::uint32_t g = 0; g < kGroups; ++g)
      engine.add_group("g" + std::to_string(g), {{"w", DType::kF32, {2 * 65536}, {}}});
    engine.freeze();
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      engine.load({g}, [&](ParameterId, std::span<std::byte> out) {
        std::ranges::fill(out, static_cast<std::byte>(0x3c + g));
      });
    }
    const Stream stream = device->create_stream();
    std::vector<std::byte> seen(kBytes);
    for (int step = 0; step < 4; ++step) {
      for (std::uint32_t g = 0; g < kGroups; ++g) {
        const Gathered lease = engine.gather({g}, stream);
        device->launch(stream, [&seen, from = lease.section(DType::kF32).data] {
          std::memcpy(seen.data(), from, kBytes);
        });
        device->synchronize(stream);
        EXPECT_EQ(seen.back(), static_cast<std::byte>(0x3c + g)) << "seed " << seed << " " << step;
      }
      engine.step({});
    }
    ahead += engine.stats().gathers_joined_ahead;
    engine.close();
    device->destroy_stream(stream);
  }
  EXPECT_GT(ahead, 0u);
}

TEST(RanksGather, OfASecondStreamWaitsForTheJoinOnTheFirst) {
  constexpr std::size_t kBytes = 2 * 65536 * 4;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto device = device::make_computing_host(
        {.flavour = HostFlavour::kLate, .seed = seed, .late_microseconds_max = 20});
    Engine engine(accumulating(1),
                  {.device = device, .collective = std::make_shared<MirrorRank>(device)});
    const GroupId group = engine.add_group("g", {{"w", DType::kF32, {2 * 65536}, {}}});
    engine.freeze();
    load_all(engine);
    const Stream first = device->create_stream(), second = device->create_stream();
    std::vector<std::byte> seen(kBytes);
    {
      const Gathered one = engine.gather(group, first);
      const Gathered two = engine.gather(group, second);
      device->launch(second, [&seen, from = two.section(DType::kF32).data] {
        std::memcpy(seen.data(), from, kBytes);
      });
    }
    device->synchronize(second);
    device->synchronize(first);
    EXPECT_EQ(seen.back(), std::byte{0x3c}) << "seed " << seed;
  }
}

// Ranks that follow an order, and end in the middle of it: after an evaluation, or where a trainer
// gave up. Rank 1 closes while rank 0 makes no call. The next call of rank 0 then names the cause.
void expect_close_without_the_others(bool interrupted, const std::string& cause) {
  std::atomic<bool> closed{false};
  const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
    register_model(rank.engine);
    rank.engine.freeze();
    load_all(rank.engine);
    const std::vector<float> gradient(300, 1);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      for (std::uint32_t g = 0; g < kGroups; ++g) (void)rank.engine.gather({g});
      for (std::uint32_t g = kGroups; g-- > 0;) {
        (void)rank.engine.gather({g});
        rank.engine.add_gradient({3 * g + 1}, gradient.data(), DType::kF32);
      }
      rank.engine.step({});
    }
    EXPECT_GT(rank.engine.stats().steps_followed, 0u);
    for (std::uint32_t g = 0; g < kGroups; ++g) (void)rank.engine.gather({g});
    if (rank.number == 1) {
      if (interrupted) rank.engine.interrupt();
      rank.engine.close();
      closed = true;
    } else {
      while (!closed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      rank.engine.step({});
    }
  });
  EXPECT_NE(errors[0].find("rank 1 gave up: " + cause), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "");
}
// Else the test takes until the collective's deadline, longer than any test may take.
TEST(RanksClose, WaitsForTheOthersForAFewSecondsAtMost) {
  expect_close_without_the_others(/*interrupted=*/false, "it closed its engine");
}
TEST(RanksClose, WaitsForNobodyOnceInterrupted) {
  expect_close_without_the_others(/*interrupted=*/true, "interrupted");
}

// ---- what must be equal ----

void expect_other_calls_named(World world) {
  const auto errors = run_ranks(std::move(world), plain, [](Rank& rank) {
    register_model(rank.engine);
    rank.engine.freeze();
    load_all(rank.engine);
    if (rank.number == 0) {
      (void)rank.engine.gather({1});
    } else {
      rank.engine.step({});
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("gather of group 'h.1'"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
    EXPECT_NE(error.find("step"), std::string::npos) << error;
  }
}
TEST(RanksOrder, AnotherCallOnOneRankIsNamed) {
  expect_other_calls_named(over_threads(2, HostFlavour::kPrompt));
}
TEST(RanksOverNccl, AnotherCallOnOneRankIsNamed) {
  expect_other_calls_named(over_nccl(2, NcclFlavour::kLate));
}

// A trainer's own collective, over one of the library's: it throws in the call number `fails_at`.
class FailingCollective final : public Collective {
 public:
  FailingCollective(std::shared_ptr<Collective> to, int fails_at)
      : to_(std::move(to)), left_(fails_at) {}
  std::uint32_t rank() const noexcept override { return to_->rank(); }
  std::uint32_t world_size() const noexcept override { return to_->world_size(); }
  void all_gather(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> whole) override {
    count();
    to_->all_gather(tag, stream, whole);
  }
  void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                  void* take) override {
    count();
    to_->all_to_all(tag, stream, give, take);
  }
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override {
    count();
    to_->exchange(tag, mine, all);
  }
  void abort(std::string_view why) noexcept override { to_->abort(why); }
  bool takes_any_thread() const noexcept override { return true; }

 private:
  void count() {
    if (left_-- == 0) throw std::runtime_error("the switch is down");
  }
  const std::shared_ptr<Collective> to_;
  int left_;
};

// The calls of freeze, of a gather and of a step.
TEST(RanksOrder, ACollectiveThatThrowsOnOneRankEndsAllWithItsCause) {
  for (const int fails_at : {0, 3, 5, 6, 8}) {
    SCOPED_TRACE(fails_at);
    World world = over_threads(2, HostFlavour::kPrompt);
    world.ranks[1] = std::make_shared<FailingCollective>(world.ranks[1], fails_at);
    const auto errors = run_ranks(std::move(world), plain, [&](Rank& rank) {
      register_model(rank.engine);
      rank.engine.freeze();
      load_all(rank.engine);
      for (std::uint32_t g = 0; g < rank.engine.group_count(); ++g) (void)rank.engine.gather({g});
      rank.engine.step({});
    });
    EXPECT_NE(errors[1].find("the switch is down"), std::string::npos) << errors[1];
    EXPECT_NE(errors[0].find("rank 1 gave up: "), std::string::npos) << errors[0];
    EXPECT_NE(errors[0].find("the switch is down"), std::string::npos) << errors[0];
  }
}

struct Difference {
  const char* what;  // in the error
  std::function<void(Engine&)> on_rank_1;
};

TEST(RanksFreeze, NamesWhatDiffers) {
  const std::vector<Difference> differences{
      {"group 'h.1'", [](Engine& e) { e.keep_bound({1}); }},
      {"keep_bound", [](Engine& e) { e.keep_bound({1}); }},
      {"expect_repeated_gradients", [](Engine& e) { e.expect_repeated_gradients({2}); }},
      {"ParameterSpec::frozen", [](Engine& e) { e.expect_no_gradients({2}); }},
      {"parameter 'h.2.b'", [](Engine& e) { e.set_frozen({7}, true); }},
      {"hyperparameters", [](Engine& e) { e.set_default_hyperparameters({.weight_decay = 0.5f}); }},
      {"4 groups",
       [](Engine& e) {
         e.add_group("more", {{"w", DType::kF32, {4}, {}}});
       }},
  };
  for (const Difference& difference : differences) {
    SCOPED_TRACE(difference.what);
    const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
      register_model(rank.engine);
      if (rank.number == 1) difference.on_rank_1(rank.engine);
      rank.engine.freeze();
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
      EXPECT_NE(error.find(difference.what), std::string::npos) << error;
    }
  }
}

TEST(RanksFreeze, ComparesEveryHyperparameter) {
  for (const Hyperparameters& other :
       {Hyperparameters{.learning_rate_scale = 0.5f}, Hyperparameters{.beta1 = 0.5f},
        Hyperparameters{.beta2 = 0.5f}, Hyperparameters{.eps = 0.5f},
        Hyperparameters{.weight_decay = 0.5f}, Hyperparameters{.momentum = 0.5f},
        Hyperparameters{.dampening = 0.5f}, Hyperparameters{.learning_rate_decay = 0.5f},
        Hyperparameters{.nesterov = true}, Hyperparameters{.bias_correction = false},
        Hyperparameters{.maximize = true}}) {
    const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
      register_model(rank.engine);
      if (rank.number == 1) rank.engine.set_default_hyperparameters(other);
      rank.engine.freeze();
    });
    for (const std::string& error : errors)
      EXPECT_NE(error.find("'h.0.w' has other hyperparameters on rank 1"), std::string::npos)
          << error;
  }
}

TEST(RanksStep, NamesAChangeThatOneRankAloneHasMade) {
  const std::vector<Difference> differences{
      {"hyperparameter set 1, that of 'h.3.v', has other values on rank 1",
       [](Engine& e) { e.set_hyperparameters({1}, {.weight_decay = 0.5f}); }},
      {"hyperparameter set 1, that of 'h.3.v', has other values on rank 1",
       [](Engine& e) { e.set_hyperparameters({1}, {.weight_decay = 0, .maximize = true}); }},
      {"hyperparameter set 0, that of 'h.0.w', has other values on rank 1",
       [](Engine& e) { e.set_hyperparameters({0}, {.beta2 = 0.9f}); }},
      {"the step count of 'h.1.b' is another on rank 1 than on rank 0, 8 and not 1",
       [](Engine& e) { e.set_step_count(e.parameter("h.1.b"), 8); }},
  };
  for (const std::uint32_t world : {2u, 3u}) {
    for (const Difference& difference : differences) {
      SCOPED_TRACE(difference.what);
      const auto errors = run_ranks(world, HostFlavour::kPrompt, plain, [&](Rank& rank) {
        Engine& engine = rank.engine;
        register_model(engine);
        const HyperparameterSetId set = engine.add_hyperparameters({.weight_decay = 0});
        engine.add_group("h.3", {{"v", DType::kF32, {300}, set}});
        engine.freeze();
        load_all(engine);
        const std::vector<float> ones(300, 1.0f);
        const auto step = [&] {
          for (const char* name : {"h.1.b", "h.3.v"})
            engine.add_gradient(engine.parameter(name), ones.data(), DType::kF32);
          engine.step({});
        };
        step();
        // What all ranks change alike is no difference.
        engine.set_hyperparameters({0}, {.weight_decay = 0.2f});
        engine.set_step_count(engine.parameter("h.0.b"), 5);
        step();
        engine.set_step_count(engine.parameter("h.1.b"), 1);
        const std::string before = engine.hash_parameters() + engine.hash_optimizer_state();
        if (rank.number == 1) difference.on_rank_1(engine);
        try {
          step();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Code::kPeerLost);
          if (rank.number != 1) {
            EXPECT_EQ(engine.hash_parameters() + engine.hash_optimizer_state(), before);
          }
          throw;
        }
      });
      for (const std::string& error : errors)
        EXPECT_NE(error.find(difference.what), std::string::npos) << error;
    }
  }
}

TEST(RanksStep, NamesTheOptionThatDiffers) {
  const StepOptions others[] = {{.learning_rate = 0.5f},
                                {.gradient_scale = 0.25f},
                                {.max_norm = 2.0f},
                                {.max_norm = -0.0f}};  // by its bits
  const char* const names[] = {"learning_rate", "gradient_scale", "max_norm", "max_norm"};
  for (std::size_t i = 0; i < std::size(others); ++i) {
    const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
      register_model(rank.engine);
      rank.engine.freeze();
      load_all(rank.engine);
      rank.engine.step(rank.number == 1 ? others[i] : StepOptions{});
    });
    for (const std::string& error : errors)
      EXPECT_NE(error.find(std::string("step: ") + names[i] + " is another on rank 1"),
                std::string::npos)
          << error;
  }
}

TEST(RanksFreeze, NamesTheParameterAndTheSettingThatDiffer) {
  const auto named = run_ranks(2, HostFlavour::kPrompt, plain, [](Rank& rank) {
    rank.engine.add_group(
        "g", {{"a", DType::kF32, {4}, {}}, {"b", DType::kF32, {rank.number == 0 ? 4 : 5}, {}}});
    rank.engine.freeze();
  });
  for (const std::string& error : named)
    EXPECT_NE(error.find("parameter 'g.b'"), std::string::npos) << error;
  const auto set = run_ranks(
      2, HostFlavour::kPrompt,
      [](std::uint32_t rank) {
        Settings settings;
        settings.tile_elements = 65536 * (rank + 1);
        return settings;
      },
      [](Rank& rank) {
        register_model(rank.engine);
        rank.engine.freeze();
      });
  for (const std::string& error : set) {
    EXPECT_NE(error.find("rank 1 has other settings than rank 0: headrace.tile_elements is 131072 "
                         "there, on rank 0 it is 65536"),
              std::string::npos)
        << error;
  }
}

// Rank 2 has more settings than the others, or fewer: those of a scheduler.
TEST(RanksFreeze, NamesASettingThatOneRankAloneHas) {
  constexpr const char* kScheduled =
      R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}}})";
  for (const bool has : {true, false}) {
    const auto errors = run_ranks(
        3, HostFlavour::kPrompt,
        [&](std::uint32_t rank) {
          return Settings::from_json((rank == 2) == has ? kScheduled : "{}");
        },
        [](Rank& rank) {
          register_model(rank.engine);
          rank.engine.freeze();
        });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("rank 2 has other settings than rank 0: scheduler.type is " +
                           std::string(has ? "\"WarmupLR\" there, on rank 0 it is not set"
                                           : "not set there, on rank 0 it is \"WarmupLR\"")),
                std::string::npos)
          << error;
    }
  }
}
}  // namespace
}  // namespace headrace
