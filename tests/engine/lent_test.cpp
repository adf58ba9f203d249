// SPDX-License-Identifier: Apache-2.0
// lent_test: weights and gradients that stay in the trainer's memory: the bits of an engine that
// keeps its own, no memory for them in the plan, and what is refused.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "device/device_host.hpp"
#include "headrace/engine.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::lent_test {
namespace {
enum class Place { kMemory, kNvme, kBudget };
struct Case {
  OptimizerRule rule;
  MomentCodec moments;
  Place place;
};
// Under a sanitizer, which takes minutes for all of them, the rule with most state alone.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const char* const matrix = std::getenv("HEADRACE_MATRIX");
  const bool few = matrix != nullptr && std::string(matrix) == "few";
  for (const OptimizerRule rule : {OptimizerRule::kAdamW, OptimizerRule::kAdagrad,
                                   OptimizerRule::kLion, OptimizerRule::kSgd}) {
    if (few && rule != OptimizerRule::kAdamW) continue;
    for (const MomentCodec codec : {MomentCodec::kF32, MomentCodec::kBlock8}) {
      for (const Place place : {Place::kMemory, Place::kNvme, Place::kBudget})
        cases.push_back({rule, codec, place});
    }
  }
  return cases;
}
std::string name_of(const Case& of) {
  constexpr const char* kPlaces[] = {"memory", "nvme", "budget"};
  return std::string(headrace::name_of(of.rule)) + "_" + headrace::name_of(of.moments) + "_" +
         kPlaces[static_cast<int>(of.place)];
}

// Two f32 groups and one of bf16. Parameters that share a tile, fill several, or have odd sizes.
const std::map<std::string, std::vector<std::int64_t>> kSizes = {
    {"a", {1, 70'001, 300, 900'000}}, {"b", {65'536, 5}}, {"half", {1'003, 90'000}}};

std::vector<ParameterSpec> specs_of(const std::string& group) {
  std::vector<ParameterSpec> specs;
  for (const std::int64_t size : kSizes.at(group)) {
    specs.push_back({.name = std::to_string(size),
                     .dtype = group == "half" ? DType::kBf16 : DType::kF32,
                     .shape = {size}});
  }
  return specs;
}

std::vector<float> noise(std::uint64_t seed, std::uint64_t count) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() >> 40) / 16'777'216.0f - 0.5f;
  return values;
}

// A trainer that lends everything that may be lent, or nothing.
class Trainer {
 public:
  Trainer(const Settings& settings, bool lends) : engine(settings), lends_(lends) {
    for (const auto& [name, sizes] : kSizes) {
      const GroupId group = engine.add_group(name, specs_of(name));
      groups_.push_back(group);
      if (!lends) {
        engine.expect_repeated_gradients(group);  // f32 sums of all: no bit is lost
        continue;
      }
      engine.expect_lent_gradients(group);
      if (name != "half") engine.expect_lent_weights(group);
    }
    engine.freeze();
    for (std::uint32_t p = 0; p < engine.parameter_count(); ++p) weights_.push_back(first(p));
    lend();
    for (const GroupId group : groups_)
      engine.load(group, [this](ParameterId id, auto values) { fill(id, values); });
  }

  // Parameters 3k + `step` have no gradient.
  void step(std::uint32_t step) {
    std::vector<std::vector<float>> gradients;
    for (std::uint32_t p = 0; p < engine.parameter_count(); ++p)
      gradients.push_back(noise(1000 * step + p, engine.spec({p}).elements()));
    for (std::uint32_t p = 0; p < engine.parameter_count(); ++p) {
      if (p % 3 == step % 3) continue;
      if (lends_) {
        engine.lend_gradient({p}, gradients[p].data(), DType::kF32);
      } else {
        engine.add_gradient({p}, gradients[p].data(), DType::kF32);
      }
    }
    engine.step({.learning_rate = 0.01f, .gradient_scale = 0.5f, .max_norm = 30});
  }
  // As a program writes to its own weights, with the values of `seed`.
  void write(std::uint32_t p, std::uint64_t seed) {
    const std::vector<float> values = noise(seed, engine.spec({p}).elements());
    if (lends_) {
      weights_[p] = values;  // the same memory
      return;
    }
    engine.load({p}, Content::kWeight, [&](std::uint64_t at, std::span<std::byte> out) {
      std::memcpy(out.data(), values.data() + at, out.size());
    });
  }
  // All weights to other addresses.
  void move() {
    weights_ = std::vector<std::vector<float>>(weights_);
    lend();
  }
  std::string hashes() { return engine.hash_parameters() + engine.hash_optimizer_state(); }
  const std::vector<float>& weights(std::uint32_t p) const { return weights_[p]; }

  Engine engine;

 private:
  bool lent(std::uint32_t p) const { return lends_ && engine.spec({p}).dtype == DType::kF32; }
  std::vector<float> first(std::uint32_t p) const { return noise(p, engine.spec({p}).elements()); }
  void lend() {
    for (std::uint32_t p = 0; p < engine.parameter_count(); ++p)
      if (lent(p)) engine.lend_weights({p}, weights_[p].data());
  }
  void fill(ParameterId id, std::span<std::byte> values) const {
    if (lent(id.index)) return;  // the values are there
    const std::vector<float> given = first(id.index);
    if (engine.spec(id).dtype == DType::kF32) {
      std::memcpy(values.data(), given.data(), values.size());
      return;
    }
    for (std::uint64_t i = 0; i < given.size(); ++i)  // bf16 by truncation
      std::memcpy(values.data() + 2 * i, reinterpret_cast<const std::byte*>(&given[i]) + 2, 2);
  }

  bool lends_;
  std::vector<GroupId> groups_;
  std::vector<std::vector<float>> weights_;  // by parameter
};

Settings settings_of(const Case& of, const std::string& folder) {
  Settings s = of.place == Place::kMemory ? Settings{} : testing::all_on_nvme(folder);
  s.tile_elements = 65'536;
  s.update_threads = 2;
  s.optimizer = of.rule;
  s.moments = of.moments;
  if (of.place != Place::kBudget) return s;
  s.update_slots = 1;
  s.prefetch_groups = 0;
  s.host_budget_bytes = 7u << 20;
  return s;
}

std::uint64_t bytes_of(const Engine& engine, const std::string& what, const std::string& tier) {
  std::uint64_t bytes = 0;
  for (const PlanRow& row : engine.plan().rows)
    bytes += row.what == what && row.tier == tier ? row.bytes : 0;
  return bytes;
}

class Lent : public ::testing::TestWithParam<Case> {
 protected:
  const testing::TemporaryDirectory directory_;
};

TEST_P(Lent, HasTheBitsOfAnEngineThatKeepsItsOwn) {
  Trainer lender(settings_of(GetParam(), directory_.string()), true);
  Settings enough = settings_of(GetParam(), directory_.string());
  enough.host_budget_bytes = 0;
  Trainer keeper(enough, false);
  EXPECT_EQ(lender.hashes(), keeper.hashes());
  for (std::uint32_t step = 1; step <= 6; ++step) {
    if (step == 3) {
      lender.write(1, 99);
      keeper.write(1, 99);
    }
    if (step == 4) lender.move();
    if (step == 5 && GetParam().place != Place::kMemory) {
      lender.engine.sleep();
      lender.engine.wake();
    }
    lender.step(step);
    keeper.step(step);
    ASSERT_EQ(lender.hashes(), keeper.hashes()) << "step " << step;
  }
}

TEST_P(Lent, TakesNoMemoryForThemAndSaysWhereTheyAre) {
  Trainer lender(settings_of(GetParam(), directory_.string()), true);
  const auto of = [&](const char* what, const char* tier) {
    return bytes_of(lender.engine, what, tier);
  };
  EXPECT_EQ(of("gradients", "host"), 0u);
  EXPECT_GT(of("gradients that are lent", "host (yours)"), 4u * 1'035'000);
  EXPECT_GT(of("parameters that are lent", "host (yours)"), 4u * 1'035'000);
  EXPECT_LT(of("parameters", "host") + of("parameters", "nvme"), 2u * 95'000);  // bf16 alone
  EXPECT_FALSE(lender.engine.plan().deferred_updates);
  if (GetParam().place != Place::kBudget || GetParam().rule != OptimizerRule::kAdamW ||
      GetParam().moments != MomentCodec::kF32) {
    return;
  }
  EXPECT_GT(lender.engine.plan().resident_share_of_state, 0.1);
  EXPECT_LT(lender.engine.plan().resident_share_of_state, 0.9);
}

INSTANTIATE_TEST_SUITE_P(Cases, Lent, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });

class LentValues : public ::testing::Test {
 protected:
  Trainer trainer_{Settings{}, true};
};

TEST_F(LentValues, AreStoredAndLoadedWhereTheyAre) {
  trainer_.step(1);
  std::vector<float> stored(900'000);
  const ParameterId id = trainer_.engine.parameter("a.900000");
  const auto into = [&](std::uint64_t at, std::span<const std::byte> values) {
    std::memcpy(stored.data() + at, values.data(), values.size());
  };
  trainer_.engine.store(id, Content::kWeight, into);
  EXPECT_EQ(stored, trainer_.weights(id.index));
  trainer_.engine.store(id, Content::kMaster, into);
  EXPECT_EQ(stored, trainer_.weights(id.index));
  trainer_.engine.load(id, Content::kMaster, [](std::uint64_t, std::span<std::byte> values) {
    std::memset(values.data(), 0, values.size());
  });
  EXPECT_EQ(std::vector<float>(900'000), trainer_.weights(id.index));
}

TEST_F(LentValues, AreNotGathered) {
  EXPECT_CODE(Code::kWrongState, (void)trainer_.engine.gather({0}), "lend_weights()");
}

TEST_F(LentValues, StayAsTheyAreWhereAGradientIsNotFinite) {
  const std::vector<float> before = trainer_.weights(0);
  const float gradient = std::numeric_limits<float>::infinity();
  trainer_.engine.lend_gradient({0}, &gradient, DType::kF32);
  EXPECT_CODE(Code::kNotFinite, trainer_.engine.step({}), "'a.1'");
  EXPECT_EQ(trainer_.weights(0), before);
  trainer_.engine.discard_gradients();
  trainer_.step(1);
  EXPECT_NE(trainer_.weights(0), before);
}

TEST_F(LentValues, RefuseWhatDoesNotFitThem) {
  Engine& engine = trainer_.engine;
  float value = 1;
  const auto* const crooked = reinterpret_cast<std::byte*>(&value) + 1;
  EXPECT_CODE(Code::kInvalidArgument, engine.lend_weights({0}, nullptr), "is null");
  EXPECT_CODE(Code::kInvalidArgument, engine.lend_weights({0}, const_cast<std::byte*>(crooked)),
              "is not a float's");
  const ParameterId half = engine.parameter("half.1003");
  EXPECT_CODE(Code::kWrongState, engine.lend_weights(half, &value), "expect_lent_weights()");
  EXPECT_CODE(Code::kInvalidArgument, engine.lend_gradient({0}, nullptr, DType::kF32), "null");
  EXPECT_CODE(Code::kWrongState, engine.add_gradient({0}, &value, DType::kF32), "lend_gradient()");
  engine.lend_gradient({0}, &value, DType::kF32);
  EXPECT_CODE(Code::kWrongState, engine.lend_gradient({0}, &value, DType::kF32),
              "a second gradient of 'a.1'");
  EXPECT_CODE(Code::kWrongState, engine.sleep(), "gradients have arrived");
}

TEST(LendingEngine, IsAskedForTheAddressesBeforeALoad) {
  Engine engine(Settings{});
  const GroupId group = engine.add_group("g", {{"w", DType::kF32, {4}}});
  engine.expect_lent_weights(group);
  engine.freeze();
  EXPECT_CODE(Code::kWrongState, engine.load(group, [](ParameterId, std::span<std::byte>) {}),
              "'g.w' were not lent");
  EXPECT_CODE(Code::kWrongState, engine.hash_parameters(), "'g'");
  EXPECT_CODE(Code::kWrongState, engine.step({}), "'g'");
}

// Freezes an engine with a group that lends.
void freeze(const Settings& settings, bool weights, ParameterSpec spec = {"w", DType::kF32, {4}},
            EngineOptions options = {}, bool repeated = false) {
  Engine engine(settings, std::move(options));
  const GroupId group = engine.add_group("g", {std::move(spec)});
  weights ? engine.expect_lent_weights(group) : engine.expect_lent_gradients(group);
  if (repeated) engine.expect_repeated_gradients(group);
  engine.freeze();
}

TEST(LendingEngine, RefusesWhatItCannotServe) {
  const testing::TemporaryDirectory directory;
  for (const bool weights : {false, true}) {
    Settings deferred;
    deferred.update_mode = UpdateMode::kDefer;
    EXPECT_CODE(Code::kUnsupported, freeze(deferred, weights), "headrace.update_mode");
    const auto ranks = collective::make_collective_threads(
        {device::make_device_host(), device::make_device_host()}, std::chrono::seconds(1));
    EXPECT_CODE(Code::kUnsupported,
                freeze({}, weights, {"w", DType::kF32, {4}}, {.collective = ranks[0]}),
                "several ranks");
  }
  EXPECT_CODE(Code::kInvalidArgument, freeze({}, true, {"w", DType::kBf16, {4}}), "'w' is BF16");
  EXPECT_CODE(Code::kInvalidArgument,
              freeze({}, true, {"w", DType::kF32, {4}, {}, /*frozen=*/true}), "'w' is frozen");
  EXPECT_CODE(Code::kUnsupported, freeze({}, false, {"w", DType::kF32, {4}}, {}, true),
              "expects several of a parameter");
  Settings summed;
  summed.gradient_accumulation_steps = 2;
  EXPECT_CODE(Code::kUnsupported, freeze(summed, false), "gradient_accumulation_steps");
  Settings durable = testing::all_on_nvme(directory.string());
  durable.durable_every = 1;
  durable.store = "kept";
  EXPECT_CODE(Code::kUnsupported, freeze(durable, true), "headrace.durable");
}
}  // namespace
}  // namespace headrace::lent_test
