// SPDX-License-Identifier: Apache-2.0
// rules_test: every rule, with moments of every codec, through the engine: where bytes lie, in what
// tiles, and how many threads there are change no bit; bytes are what the plan says.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "optimizer_cpu/state_streams.hpp"
#include "support/all_on_nvme.hpp"
#include "support/computing_host.hpp"
#include "support/expect_code.hpp"
#include "support/mlp.hpp"
#include "support/saved_state.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::rules_test {
namespace {
constexpr OptimizerRule kRules[] = {OptimizerRule::kAdamW,   OptimizerRule::kAdam,
                                    OptimizerRule::kAdagrad, OptimizerRule::kLion,
                                    OptimizerRule::kSgd,     OptimizerRule::kSgdMomentum};
constexpr MomentCodec kCodecs[] = {MomentCodec::kF32, MomentCodec::kBf16, MomentCodec::kBlock8};
constexpr int kSteps = 4;

struct Case {
  OptimizerRule rule;
  MomentCodec moments;
};
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const OptimizerRule rule : kRules) {
    for (const MomentCodec moments : kCodecs) cases.push_back({rule, moments});
  }
  return cases;
}
std::string name_of(const Case& of) {
  return std::string(headrace::name_of(of.rule)) + "_" + headrace::name_of(of.moments);
}

testing::MlpOptions network_of(const Case& of) {
  testing::MlpOptions options{.layers = 2, .max_norm = 0.05f};
  if (of.rule == OptimizerRule::kSgdMomentum) {
    options.hyperparameters.momentum = 0.9f;
    options.hyperparameters.nesterov = true;
  }
  return options;
}

// An engine and what it trains.
struct Training {
  Training(const Case& of, Settings settings) {
    settings.optimizer = of.rule;
    settings.moments = of.moments;
    engine = std::make_unique<Engine>(settings, EngineOptions{.device = device});
    network = std::make_unique<testing::Mlp>(*engine, *device, network_of(of));
  }
  std::string after(int steps) {
    for (int step = 0; step < steps; ++step) network->train_step();
    return engine->hash_parameters() + engine->hash_optimizer_state();
  }
  std::shared_ptr<device::ComputingDevice> device = device::make_computing_host();
  std::unique_ptr<Engine> engine;
  std::unique_ptr<testing::Mlp> network;
};

class Rules : public ::testing::TestWithParam<Case> {
 protected:
  const testing::TemporaryDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(Every, Rules, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Rules, GiveTheSameBitsWhereverBytesLieAndWhateverTheTilesAndThreads) {
  Settings memory;
  memory.update_threads = 1;
  const std::string expected = Training(GetParam(), memory).after(kSteps);
  std::uint64_t tile = 65536;
  for (const std::uint32_t threads : {2u, 3u, 7u}) {
    Settings nvme = testing::all_on_nvme(directory_.string());
    nvme.update_threads = threads;
    nvme.tile_elements = tile;
    EXPECT_EQ(Training(GetParam(), nvme).after(kSteps), expected) << threads << " threads";
    tile *= 2;
  }
}

// Even: the network's even and odd steps differ.
constexpr int kBefore = 2, kAfter = 3;

TEST_P(Rules, GoOnToTheSameBitsFromWhatWasStored) {
  const std::uint32_t kept = moments(optimizer_cpu::arithmetic_of(GetParam().rule));
  Training whole(GetParam(), testing::all_on_nvme(directory_.string()));
  whole.after(kBefore);
  const testing::SavedState saved(*whole.engine, kept);
  const std::string expected = whole.after(kAfter);
  Settings memory;
  memory.tile_elements = 131072;
  Training resumed(GetParam(), memory);
  saved.into(*resumed.engine);
  EXPECT_TRUE(testing::SavedState(*resumed.engine, kept) == saved);
  EXPECT_EQ(resumed.after(kAfter), expected);
}

// What a step of one bf16 parameter with all its state on NVMe reads, per element; the same is
// written.
double bytes_per_element(const Settings& settings) {
  constexpr std::uint64_t kElements = 1 << 20;
  Engine engine(settings);
  const GroupId group = engine.add_group("g", {{"w", DType::kBf16, {kElements}}});
  engine.freeze();
  engine.load(group, [](ParameterId, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{0x3d});
  });
  const std::vector<std::uint16_t> gradient(kElements, 0x3c00);
  const Stats before = engine.stats();
  engine.add_gradient({0}, gradient.data(), DType::kBf16);
  engine.step({.learning_rate = 1e-3f});
  engine.finish_step();
  const Stats after = engine.stats();
  const std::uint64_t read = after.nvme_read_bytes - before.nvme_read_bytes;
  EXPECT_EQ(after.nvme_written_bytes - before.nvme_written_bytes, read);
  EXPECT_EQ(static_cast<double>(read), engine.plan().nvme_read_bytes_per_step);
  return static_cast<double>(read) / kElements;
}

TEST(Bytes, PerParameterAreThoseOfTheStreams) {
  const testing::TemporaryDirectory directory;
  Settings settings;
  settings.offload_optimizer = OffloadDevice::kNvme;
  settings.nvme_paths = {directory.string()};
  const double header = 4096.0 / (1 << 20);
  const auto moved = [&](OptimizerRule rule, MomentCodec moments) {
    settings.optimizer = rule;
    settings.moments = moments;
    return bytes_per_element(settings) - header;
  };
  EXPECT_EQ(moved(OptimizerRule::kAdamW, MomentCodec::kF32), 10);
  EXPECT_EQ(moved(OptimizerRule::kAdamW, MomentCodec::kBf16), 6);
  EXPECT_EQ(moved(OptimizerRule::kAdamW, MomentCodec::kBlock8), 4 + 2.0 / 256);
  EXPECT_EQ(moved(OptimizerRule::kLion, MomentCodec::kF32), 6);
  EXPECT_EQ(moved(OptimizerRule::kAdagrad, MomentCodec::kBlock8), 3 + 1.0 / 256);
  EXPECT_EQ(moved(OptimizerRule::kSgd, MomentCodec::kF32), 2);
  settings.master = MasterLayout::kF32;
  EXPECT_EQ(moved(OptimizerRule::kAdamW, MomentCodec::kF32), 12);
}

TEST(Moments, ThatARuleDoesNotKeepAreRefusedByName) {
  Training lion({OptimizerRule::kLion, MomentCodec::kF32}, {});
  const auto ignore = [](std::uint64_t, std::span<const std::byte>) {};
  EXPECT_CODE(Code::kInvalidArgument, lion.engine->store({0}, Content::kExpAvgSq, ignore),
              "the rule lion keeps 1 moment");
  Training sgd({OptimizerRule::kSgd, MomentCodec::kF32}, {});
  EXPECT_CODE(Code::kInvalidArgument,
              sgd.engine->load({0}, Content::kExpAvg, [](std::uint64_t, std::span<std::byte>) {}),
              "the rule sgd keeps 0 moments");
}

TEST(Moments, OfAnotherSeedAreRoundedOtherwise) {
  const Case of{OptimizerRule::kAdamW, MomentCodec::kBf16};
  Settings other;
  other.rounding_seed = 1;
  EXPECT_NE(Training(of, {}).after(2), Training(of, other).after(2));
  const Case exact{OptimizerRule::kAdamW, MomentCodec::kF32};
  EXPECT_EQ(Training(exact, {}).after(2), Training(exact, other).after(2));
}

TEST(NonFiniteGradients, AreSkippedAndCountedWhereTheSettingsSaySo) {
  Settings settings;
  settings.non_finite = NonFinite::kSkip;
  std::string said;
  Engine engine(settings, {.log = [&](LogLevel, std::string_view text) { said += text; }});
  const GroupId group = engine.add_group("g", {{"w", DType::kF32, {300}}});
  engine.freeze();
  engine.load(group, [](ParameterId, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{0x3d});
  });
  std::vector<float> gradient(300, 0.5f);
  const auto step = [&] {
    engine.add_gradient({0}, gradient.data(), DType::kF32);
    return engine.step({});
  };
  EXPECT_EQ(step().step, 1u);
  const std::string before = engine.hash_parameters() + engine.hash_optimizer_state();
  gradient[7] = std::numeric_limits<float>::infinity();
  gradient[9] = std::numeric_limits<float>::quiet_NaN();
  const StepResult skipped = step();
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.non_finite_gradients, 2u);
  EXPECT_EQ(skipped.step, 1u);
  EXPECT_EQ(skipped.parameters_updated, 0u);
  EXPECT_EQ(engine.stats().steps_skipped, 1u);
  EXPECT_NE(said.find("'g.w' holds NaN or infinity"), std::string::npos) << said;
  EXPECT_EQ(engine.hash_parameters() + engine.hash_optimizer_state(), before);
  gradient[7] = gradient[9] = 0.5f;
  const StepResult next = step();
  EXPECT_EQ(next.step, 2u);
  EXPECT_FALSE(next.skipped);
  EXPECT_EQ(engine.step_count({0}), 2u);
}

TEST(EngineHyperparameters, AreCheckedForTheirRuleAndCodec) {
  Settings settings;
  settings.optimizer = OptimizerRule::kSgd;
  Engine sgd(settings);
  EXPECT_CODE(Code::kInvalidArgument, sgd.add_hyperparameters({.momentum = 0.9f}), "sgd_momentum");
  EXPECT_CODE(Code::kInvalidArgument, sgd.add_hyperparameters({.nesterov = true}), "sgd_momentum");
  settings.optimizer = OptimizerRule::kAdamW;
  settings.moments = MomentCodec::kBlock8;
  Engine adamw(settings);
  EXPECT_CODE(Code::kInvalidArgument, adamw.add_hyperparameters({.eps = 0}), "8-bit");
  EXPECT_CODE(Code::kInvalidArgument, adamw.add_hyperparameters({.beta2 = 1}), "beta2");
  settings.optimizer = OptimizerRule::kSgdMomentum;
  Engine momentum(settings);
  EXPECT_CODE(Code::kInvalidArgument, momentum.add_hyperparameters({.nesterov = true}), "nesterov");
}

TEST(EngineHyperparameters, AStepThatNoF32HoldsIsRefusedAndMayBeRepeatedWithALowerRate) {
  const auto device = device::make_computing_host();
  Engine engine(Settings{}, {.device = device});
  testing::Mlp network(
      engine, *device,
      {.layers = 2, .width = 100, .hyperparameters = {.learning_rate_scale = 1e30f}});
  const std::string before = engine.hash_parameters();
  network.compute_gradients();
  EXPECT_CODE(Code::kInvalidArgument, engine.step({.learning_rate = 1e10f}), "no f32 holds");
  EXPECT_EQ(engine.hash_parameters(), before);
  EXPECT_EQ(engine.step({.learning_rate = 1e-35f}).step, 1u);
  EXPECT_NE(engine.hash_parameters(), before);
}
}  // namespace
}  // namespace headrace::rules_test
