// SPDX-License-Identifier: Apache-2.0
// ranks_hierarchical_test: ranks of a node that add their gradients to each other before sums leave
// it (headrace.hierarchical_reduce_ranks).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/number_formats.hpp"
#include "support/mlp.hpp"
#include "support/rank_engines.hpp"

namespace headrace::ranks_hierarchical_test {
namespace {
using namespace rank_engines;

Settings in_nodes_of(std::uint32_t node_ranks, std::uint32_t accumulation = 1) {
  Settings settings = accumulating(accumulation);
  settings.hierarchical_reduce_ranks = node_ranks;
  return settings;
}

// (1e8 + 1) + (-1e8 + 5) is 8 in f32, and ((1e8 + 1) - 1e8) + 5 is 5.
TEST(RanksHierarchical, AddTheirGradientsWithinNodesFirst) {
  constexpr std::int64_t kElements = 5 * 65536;  // one rank has two blocks
  for (const std::uint32_t node_ranks : {1u, 2u, 4u}) {
    std::array<double, 4> norms{};
    const auto errors = run_ranks(
        4, HostFlavour::kLate, [&](std::uint32_t) { return in_nodes_of(node_ranks); },
        [&](Rank& rank) {
          Engine& engine = rank.engine;
          const GroupId group = engine.add_group("g", {{"w", DType::kBf16, {kElements}, {}}});
          engine.freeze();
          load_all(engine);
          const float mine = std::array{1e8f, 1.0f, -1e8f, 5.0f}[rank.number];
          const std::vector<float> gradient(kElements, mine);
          (void)engine.gather(group);
          engine.add_gradient({0}, gradient.data(), DType::kF32);
          norms[rank.number] = engine.step({}).gradient_norm;
        });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    const double sum = node_ranks == 2 ? 8 : 5;
    for (const double norm : norms) EXPECT_DOUBLE_EQ(norm, sum * std::sqrt(kElements));
  }
}

// ---- the number of nodes changes nothing ----

constexpr std::uint32_t kMicroBatches = 8, kTrainedSteps = 2;

// What micro-batch `m` brings of a parameter, if it brings any: some are missing, in some nodes of
// two from both ranks, and some are f32.
bool has(std::uint32_t m, ParameterId id) {
  return (m + id.index) % 3 != 0 && (m / 2 + id.index) % 4 != 0;
}
bool is_f32(std::uint32_t m, ParameterId id) { return id.index == 3 && m % 4 == 2; }

struct GradientValues {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;
};
GradientValues values_of(std::uint32_t m, std::uint32_t step, const ParameterSpec& spec,
                         ParameterId id) {
  GradientValues values;
  const std::uint64_t seed = m + 31 * (step + 7 * id.index);
  for (std::size_t e = 0; e < spec.elements(); ++e) {
    values.f32.push_back(testing::noise(seed, e) * std::ldexp(1.0f, static_cast<int>(m * e % 11)));
    values.bf16.push_back(kernels::f32_to_bf16(values.f32.back()));
  }
  return values;
}

void train(Rank& rank, std::uint32_t world) {
  Engine& engine = rank.engine;
  for (std::uint32_t step = 0; step < kTrainedSteps; ++step) {
    std::vector<GradientValues> handed;
    handed.reserve(kMicroBatches * engine.parameter_count());
    for (std::uint32_t m = rank.number; m < kMicroBatches; m += world) {
      for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
      for (std::uint32_t g = kGroups; g-- > 0;) {
        (void)engine.gather({g});
        for (const ParameterId id : engine.parameters({g})) {
          if (id == kFrozen || !has(m, id)) continue;
          const ParameterSpec& spec = engine.spec(id);
          const GradientValues& values = handed.emplace_back(values_of(m, step, spec, id));
          if (spec.dtype == DType::kF32 || is_f32(m, id)) {
            engine.add_gradient(id, values.f32.data(), DType::kF32);
          } else {
            engine.add_gradient(id, values.bf16.data(), DType::kBf16);
          }
        }
      }
    }
    engine.step({.learning_rate = 1e-2f, .gradient_scale = 1.0f / kMicroBatches, .max_norm = 1});
  }
}

std::string hash_after(World made, const Settings& settings) {
  const auto world = static_cast<std::uint32_t>(made.ranks.size());
  std::vector<std::string> hashes(world);
  Settings of_rank = settings;
  of_rank.gradient_accumulation_steps = kMicroBatches / world;
  const auto errors = run_ranks(
      std::move(made), [&](std::uint32_t) { return of_rank; },
      [&](Rank& rank) {
        register_model(rank.engine);
        rank.engine.freeze();
        load_all(rank.engine);
        train(rank, world);
        hashes[rank.number] = rank.engine.hash_parameters() + rank.engine.hash_optimizer_state();
      });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
  return hashes[0];
}

TEST(RanksHierarchical, ResultsDependOnTheRanksOfANodeAndNotOnTheNumberOfNodes) {
  const std::string one_node = hash_after(over_threads(2, HostFlavour::kPrompt), in_nodes_of(2));
  EXPECT_EQ(hash_after(over_threads(4, HostFlavour::kLate), in_nodes_of(2)), one_node);
  EXPECT_EQ(hash_after(over_threads(8, HostFlavour::kPrompt), in_nodes_of(2)), one_node);
  EXPECT_EQ(hash_after(over_nccl(4, NcclFlavour::kLate), in_nodes_of(2)), one_node);
  const std::string of_four = hash_after(over_threads(4, HostFlavour::kPrompt), in_nodes_of(4));
  EXPECT_EQ(hash_after(over_threads(8, HostFlavour::kLate), in_nodes_of(4)), of_four);
  const std::string in_rank_order = hash_after(over_threads(4, HostFlavour::kLate), in_nodes_of(1));
  EXPECT_NE(one_node, in_rank_order);
  EXPECT_NE(of_four, in_rank_order);
  EXPECT_NE(of_four, one_node);
}

TEST(RanksHierarchical, ResultsDoNotDependOnStagesCopiesOfNodesOrOrder) {
  Settings settings = in_nodes_of(2);
  const std::string expected = hash_after(over_threads(4, HostFlavour::kPrompt), settings);
  settings.rank_agreement = RankOrder::kEach;
  EXPECT_EQ(hash_after(over_threads(4, HostFlavour::kLate), settings), expected);
  settings.zero_hpz_partition_size = 2;
  EXPECT_EQ(hash_after(over_threads(4, HostFlavour::kPrompt), settings), expected);
  settings.rank_agreement = RankOrder::kTrace;
  EXPECT_EQ(hash_after(over_threads(4, HostFlavour::kLate), settings), expected);
  settings.zero_hpz_partition_size = 1;
  settings.zero_stage = 1;
  EXPECT_EQ(hash_after(over_threads(4, HostFlavour::kLate), settings), expected);
}

// A section that passes in several parts.
TEST(RanksHierarchical, SumLargeGroupsInParts) {
  constexpr std::int64_t kElements = 4 * 24 * 65536;
  std::vector<std::uint16_t> values(10007);
  for (std::size_t e = 0; e < values.size(); ++e)
    values[e] = kernels::f32_to_bf16(testing::noise(1, e));
  std::array<double, 2> norms{};
  for (const std::uint32_t world : {2u, 4u}) {
    const auto errors = run_ranks(
        world, HostFlavour::kPrompt, [&](std::uint32_t) { return in_nodes_of(2, 4 / world); },
        [&](Rank& rank) {
          Engine& engine = rank.engine;
          const GroupId group = engine.add_group("g", {{"w", DType::kBf16, {kElements}, {}}});
          engine.freeze();
          load_all(engine);
          std::vector<std::uint16_t> gradient(kElements);
          for (std::uint32_t m = rank.number; m < 4; m += world) {
            (void)engine.gather(group);
            for (std::size_t e = 0; e < gradient.size(); ++e)
              gradient[e] = values[(e + 97 * m) % values.size()];
            engine.add_gradient({0}, gradient.data(), DType::kBf16);
          }
          const double norm = engine.step({}).gradient_norm;
          if (rank.number == 0) norms[world / 4] = norm;
        });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  EXPECT_GT(norms[0], 0);
  EXPECT_EQ(norms[0], norms[1]);
}

// Between two gathers, rank 1 brings gradients of two groups, and rank 0 lacks the one that rank 1
// brings first. In the order of backward, rank 0 waits with the other one.
std::vector<std::string> bring_two_groups(std::uint32_t node_ranks, const char* first,
                                          const char* second) {
  return run_ranks(
      2, HostFlavour::kPrompt, [&](std::uint32_t) { return in_nodes_of(node_ranks); },
      [=](Rank& rank) {
        Engine& engine = rank.engine;
        register_model(engine);
        engine.freeze();
        load_all(engine);
        const std::vector<float> ones(90000, 1.0f);
        for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
        if (rank.number == 1)
          engine.add_gradient(engine.parameter(first), ones.data(), DType::kF32);
        engine.add_gradient(engine.parameter(second), ones.data(), DType::kF32);
        EXPECT_EQ(engine.step({}).gradient_norm, std::sqrt(90000.0 * (1 + 2 * 2)));
      });
}

TEST(RanksHierarchical, SumWhatComesInTheOrderOfBackward) {
  for (const std::string& error : bring_two_groups(2, "h.1.w", "h.0.w")) EXPECT_EQ(error, "");
}

TEST(RanksHierarchical, RefuseWhatComesBehindOthersOfAMicroBatch) {
  for (const std::string& error : bring_two_groups(1, "h.0.w", "h.1.w")) EXPECT_EQ(error, "");
  for (const std::string& error : bring_two_groups(2, "h.0.w", "h.1.w")) {
    EXPECT_NE(error.find("rank 1 brings a gradient of 'h.1.w' where those of other ranks have been "
                         "summed already"),
              std::string::npos)
        << error;
  }
}

// ---- what passes between ranks ----

class RanksHierarchicalSent
    : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> {};

TEST_P(RanksHierarchicalSent, IsWhatThePlanSays) {
  constexpr std::uint32_t kWarmUp = 3, kSteps = 2;
  const auto [world, node_ranks, copies] = GetParam();
  double gradients = 0, beyond = 0;
  const std::uint64_t elements = std::uint64_t{kGroups} * 8 * 65536;
  const auto settings_of = [&, node_ranks = node_ranks, copies = copies](std::uint32_t) {
    Settings s = in_nodes_of(node_ranks);
    s.zero_hpz_partition_size = copies;
    s.prefetch_groups = kGroups;  // which have slots for all of them
    return s;
  };
  const auto errors = run_ranks(world, HostFlavour::kLate, settings_of, [&](Rank& rank) {
    Engine& engine = rank.engine;
    for (std::uint32_t g = 0; g < kGroups; ++g)
      engine.add_group("h." + std::to_string(g), {{"w", DType::kBf16, {8 * 65536}, {}}});
    engine.freeze();
    load_all(engine);
    const std::vector<std::uint16_t> gradient(8 * 65536, 0x3c00);
    const auto step = [&] {
      for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
      for (std::uint32_t g = kGroups; g-- > 0;) {
        (void)engine.gather({g});
        engine.add_gradient({g}, gradient.data(), DType::kBf16);
      }
      engine.step({});
    };
    for (std::uint32_t s = 0; s < kWarmUp; ++s) step();
    const Stats before = engine.stats();
    for (std::uint32_t s = 0; s < kSteps; ++s) step();
    const Stats after = engine.stats();
    const auto of_steps = [&](std::uint64_t CollectiveCalls::*bytes) {
      return static_cast<double>(after.all_gathers.*bytes + after.all_to_alls.*bytes -
                                 before.all_gathers.*bytes - before.all_to_alls.*bytes);
    };
    const PlanReport plan = engine.plan();
    EXPECT_EQ(of_steps(&CollectiveCalls::sent_bytes), kSteps * plan.sent_bytes_per_step);
    EXPECT_EQ(of_steps(&CollectiveCalls::sent_to_other_nodes_bytes),
              kSteps * plan.sent_to_other_nodes_bytes_per_step);
    if (rank.number != 0) return;
    gradients = static_cast<double>(after.all_to_alls.sent_bytes - before.all_to_alls.sent_bytes);
    beyond = static_cast<double>(after.all_to_alls.sent_to_other_nodes_bytes -
                                 before.all_to_alls.sent_to_other_nodes_bytes);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  const double ranks = node_ranks, nodes = world / node_ranks;
  const auto of_all = static_cast<double>(kSteps * elements);
  if (8 % world != 0) return;  // then each rank has as many blocks
  EXPECT_DOUBLE_EQ(beyond, 4 * of_all / ranks * (nodes - 1) / nodes);
  EXPECT_DOUBLE_EQ(gradients - beyond, 2 * of_all * (ranks - 1) / ranks);
}
INSTANTIATE_TEST_SUITE_P(Worlds, RanksHierarchicalSent,
                         ::testing::Values(std::tuple(4u, 2u, 1u), std::tuple(4u, 2u, 2u),
                                           std::tuple(4u, 4u, 1u), std::tuple(6u, 3u, 1u),
                                           std::tuple(8u, 4u, 1u)));

// ---- refusals ----

std::vector<std::string> refusals(std::uint32_t world, std::uint32_t node_ranks) {
  return run_ranks(
      world, HostFlavour::kPrompt, [&](std::uint32_t) { return in_nodes_of(node_ranks); },
      [](Rank& rank) {
        register_model(rank.engine);
        rank.engine.freeze();
      });
}

TEST(RanksHierarchical, NodesThatDoNotMakeUpTheWorldAreRefused) {
  for (const std::uint32_t node_ranks : {3u, 8u}) {
    for (const std::string& error : refusals(4, node_ranks)) {
      EXPECT_NE(error.find("headrace.hierarchical_reduce_ranks is " + std::to_string(node_ranks) +
                           ", and 4 ranks do not make up"),
                std::string::npos)
          << error;
    }
  }
}

// A trainer's own, of an older version.
class WithoutAllToAllV final : public Collective {
 public:
  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t world_size() const noexcept override { return 2; }
  void all_gather(CollectiveTag, Stream, std::span<const DeviceSpan>) override {}
  void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override {}
  void exchange(CollectiveTag, std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (std::size_t r = 0; r < 2; ++r)
      std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(r * mine.size()));
  }
  void abort(std::string_view) noexcept override {}
};

TEST(RanksHierarchical, ACollectiveThatCannotIsRefused) {
  Engine engine(in_nodes_of(2), {.collective = std::make_shared<WithoutAllToAllV>()});
  register_model(engine);
  try {
    engine.freeze();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_NE(std::string(error.what())
                  .find("headrace.hierarchical_reduce_ranks is 2, and this "
                        "collective has no all_to_all_v"),
              std::string::npos)
        << error.what();
  }
}

TEST(RanksHierarchical, OneRankSaysThatItAddsInAnotherOrder) {
  std::string said;
  Engine engine(in_nodes_of(2), {.log = [&](LogLevel level, std::string_view text) {
                  if (level == LogLevel::kWarning) said += text;
                }});
  register_model(engine);
  engine.freeze();
  EXPECT_NE(said.find("headrace.hierarchical_reduce_ranks has no effect"), std::string::npos)
      << said;
}
}  // namespace
}  // namespace headrace::ranks_hierarchical_test
