// SPDX-License-Identifier: Apache-2.0
// cpu_optimizer_equality_test: a CpuOptimizer over arrays of its own and an engine, given the same
// weights and gradients, come to the same weights, masters and moments, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "headrace/cpu_optimizer.hpp"
#include "headrace/engine.hpp"
#include "optimizer_cpu/masters.hpp"
#include "optimizer_cpu/moment_codecs.hpp"
#include "optimizer_cpu/owned_parameter.hpp"
#include "optimizer_cpu/state_streams.hpp"

namespace headrace::cpu_optimizer_equality_test {
namespace {
using testing::OwnedParameter;

struct Case {
  OptimizerRule rule;
  MomentCodec moments;
  MasterLayout layout;
};
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int rule = 0; rule <= static_cast<int>(OptimizerRule::kSgdMomentum); ++rule) {
    for (const auto codec : {MomentCodec::kF32, MomentCodec::kBf16, MomentCodec::kBlock8}) {
      for (const auto layout : {MasterLayout::kSplit, MasterLayout::kF32})
        cases.push_back({static_cast<OptimizerRule>(rule), codec, layout});
    }
  }
  return cases;
}
std::string name_of(const Case& of) {
  return std::string(headrace::name_of(of.rule)) + "_" + headrace::name_of(of.moments) +
         (of.layout == MasterLayout::kSplit ? "_split" : "_master");
}

Hyperparameters hyperparameters_of(OptimizerRule rule) {
  Hyperparameters values = {.weight_decay = 0.1f};
  if (rule == OptimizerRule::kSgdMomentum) {
    values.momentum = 0.9f;
    values.nesterov = true;
  }
  return values;
}

class Both : public ::testing::TestWithParam<Case> {
 protected:
  Both()
      : optimizer_({.rule = GetParam().rule,
                    .moments = GetParam().moments,
                    .rounding_seed = 11,
                    .threads = 2}),
        engine_(settings()) {
    parameters_ = {
        {.name = "a", .elements = 90'001, .layout = GetParam().layout},
        {.name = "b", .elements = 300'000, .layout = GetParam().layout},
        {.name = "c", .elements = 70'000, .dtype = DType::kF32, .gradient_dtype = DType::kF32},
        {.name = "d", .elements = 5, .layout = GetParam().layout},
    };
    const auto set = engine_.add_hyperparameters(hyperparameters_of(GetParam().rule));
    std::vector<ParameterState> states;
    // A group each, so that each begins a block, as it does alone.
    for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
      OwnedParameter& p = parameters_[i];
      engine_.add_group(p.name, {{"w", p.dtype, {static_cast<std::int64_t>(p.elements)}, set}});
      p.number = i;
      p.hyperparameters = hyperparameters_of(GetParam().rule);
      p.allocate(optimizer_);
      states.push_back(p.state());
    }
    optimizer_.initialize(states);
    engine_.freeze();
    for (std::uint32_t g = 0; g < parameters_.size(); ++g) {
      engine_.load({g}, [&](ParameterId id, std::span<std::byte> out) {
        std::memcpy(out.data(), parameters_[id.index].weight.data(), out.size());
      });
    }
  }

  static Settings settings() {
    Settings settings;
    settings.optimizer = GetParam().rule;
    settings.moments = GetParam().moments;
    settings.master = GetParam().layout;
    settings.rounding_seed = 11;
    settings.update_threads = 1;
    settings.tile_elements = 65536;
    return settings;
  }

  // Of the first `count` parameters.
  void step(std::size_t count, const StepOptions& options) {
    std::vector<ParameterUpdate> updates;
    for (std::uint32_t i = 0; i < count; ++i) {
      OwnedParameter& p = parameters_[i];
      p.new_gradient(++p.t);
      updates.push_back(p.update());
      engine_.add_gradient({i}, p.gradient.data(), p.gradient_dtype);
    }
    const CpuStepResult alone = optimizer_.step(updates, options);
    const StepResult result = engine_.step(options);
    if (count < parameters_.size()) return;  // the engine's tree then has leaves that are empty
    EXPECT_EQ(alone.gradient_norm, result.gradient_norm);
    EXPECT_EQ(alone.clip_factor, result.clip_factor);
  }

  std::vector<std::byte> stored(std::uint32_t parameter, Content content) {
    std::vector<std::byte> all;
    engine_.store({parameter}, content, [&](std::uint64_t, std::span<const std::byte> values) {
      all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  }

  void expect_same(std::uint32_t i) {
    OwnedParameter& p = parameters_[i];
    EXPECT_TRUE(p.weight == stored(i, Content::kWeight)) << p.name;
    std::vector<float> values(p.elements);
    const auto bytes = [&] {
      const auto view = std::as_bytes(std::span(values));
      return std::vector<std::byte>(view.begin(), view.end());
    };
    optimizer_cpu::read_master(optimizer_cpu::master_kind(p.dtype, p.layout), p.weight.data(),
                               p.master.data(), p.elements, values.data());
    EXPECT_TRUE(bytes() == stored(i, Content::kMaster)) << p.name;
    const auto arithmetic = optimizer_cpu::arithmetic_of(GetParam().rule);
    for (std::uint32_t k = 0; k < moments(arithmetic); ++k) {
      optimizer_cpu::decode_moment({.codec = GetParam().moments,
                                    .square = is_square(arithmetic, k),
                                    .index = k,
                                    .data = p.moment[k].data(),
                                    .scale = reinterpret_cast<std::uint8_t*>(p.scale[k].data())},
                                   p.elements, values.data());
      EXPECT_TRUE(bytes() == stored(i, k == 0 ? Content::kExpAvg : Content::kExpAvgSq)) << p.name;
    }
    EXPECT_EQ(engine_.step_count({i}), p.t);
  }

  CpuOptimizer optimizer_;
  Engine engine_;
  std::vector<OwnedParameter> parameters_;
};
INSTANTIATE_TEST_SUITE_P(Every, Both, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Both, ComeToTheSameBits) {
  step(4, {.learning_rate = 1e-2f, .gradient_scale = 0.5f, .max_norm = 0.3f});
  step(3, {.learning_rate = 2e-2f});  // "d" gets none: its count falls behind
  step(4, {.learning_rate = 1e-2f, .max_norm = 0.3f});
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) expect_same(i);
}
}  // namespace
}  // namespace headrace::cpu_optimizer_equality_test
