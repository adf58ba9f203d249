// SPDX-License-Identifier: Apache-2.0
// ranks_gradients_test: gradients that one rank has and another has not count as zeros.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <tuple>

#include "kernels/number_formats.hpp"
#include "partition/partition.hpp"
#include "support/failing_drive.hpp"
#include "support/rank_engines.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::ranks_gradients_test {
namespace {
using namespace rank_engines;

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

// Rank 1 brings the group's first f32 gradient of a bf16 parameter, where the others have already
// brought what comes behind that parameter. Rank 1's part of it is still added before rank 2's:
// (1e8 + 1) - 1e8 is 0 in f32. What was there in bf16 keeps its values.
TEST(RanksGradients, AreInRankOrderWhereAGroupBecomesF32) {
  constexpr std::int64_t kElements = 3 * 65536;
  for (const HostFlavour flavour : {HostFlavour::kPrompt, HostFlavour::kLate}) {
    std::array<double, 3> norms{};
    const auto errors = run_ranks(3, flavour, plain, [&](Rank& rank) {
      Engine& engine = rank.engine;
      const GroupId group = engine.add_group("g", {{"before", DType::kBf16, {kElements}, {}},
                                                   {"wide", DType::kBf16, {kElements}, {}},
                                                   {"behind", DType::kF32, {kElements}, {}}});
      engine.freeze();
      load_all(engine);
      const std::vector<std::uint16_t> bf16(kElements, 0x3fc0);  // 1.5
      const std::vector<float> wide(kElements, 1.0f + 0x1p-12f);
      const std::vector<float> behind(kElements, std::array{1e8f, 1.0f, -1e8f}[rank.number]);
      (void)engine.gather(group);
      engine.add_gradient({0}, bf16.data(), DType::kBf16);
      if (rank.number == 1) engine.add_gradient({1}, wide.data(), DType::kF32);
      engine.add_gradient({2}, behind.data(), DType::kF32);
      norms[rank.number] = engine.step({}).gradient_norm;
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    constexpr double kSum = 3 * 1.5, kWide = 1 + 0x1p-12;
    for (const double norm : norms)
      EXPECT_DOUBLE_EQ(norm, std::sqrt(kElements * (kSum * kSum + kWide * kWide)));
  }
}

// From the second step on, rank 0 holds its bf16 gradients while it follows the order. In the third
// rank 1 brings the group's first f32 gradient before any other, so the ranks leave the order.
TEST(RanksGradients, ThatAreHeldInTheOrderBecomeF32WithTheGroup) {
  constexpr std::int64_t kElements = 3 * 65536;
  for (const HostFlavour flavour : {HostFlavour::kPrompt, HostFlavour::kLate}) {
    std::array<double, 2> norms{};
    const auto errors = run_ranks(2, flavour, plain, [&](Rank& rank) {
      Engine& engine = rank.engine;
      for (const char* const name : {"g", "h"})
        engine.add_group(
            name, {{"a", DType::kBf16, {kElements}, {}}, {"b", DType::kBf16, {kElements}, {}}});
      engine.freeze();
      load_all(engine);
      const std::vector<std::uint16_t> bf16(kElements, 0x3fc0);  // 1.5
      const std::vector<float> wide(kElements, 1.0f + 0x1p-12f);
      for (int step = 0; step < 3; ++step) {
        for (std::uint32_t g = 0; g < 2; ++g) (void)engine.gather({g});
        for (std::uint32_t g = 2; g-- > 0;) {
          (void)engine.gather({g});
          for (const ParameterId id : engine.parameters({g})) {
            if (step == 2 && rank.number == 1 && id.index % 2 == 0) {
              engine.add_gradient(id, wide.data(), DType::kF32);
            } else {
              engine.add_gradient(id, bf16.data(), DType::kBf16);
            }
          }
        }
        norms[rank.number] = engine.step({}).gradient_norm;
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    constexpr double kWide = 1.5 + 1 + 0x1p-12;
    for (const double norm : norms)
      EXPECT_DOUBLE_EQ(norm, std::sqrt(2.0 * kElements * (kWide * kWide + 9)));
  }
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
}  // namespace
}  // namespace headrace::ranks_gradients_test
