// SPDX-License-Identifier: Apache-2.0
// frozen_test: groups and parameters that are frozen: what they do not take, what they refuse, and
// that training beside them is the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "headrace/engine.hpp"
#include "kernels/hash.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::frozen_test {
namespace {
using testing::Departure;
using testing::ScriptedTrainer;

const std::vector<std::int64_t> kGroups = {3000, 150'000, 70'000};  // the middle one is frozen
constexpr std::uint32_t kFrozen = 1;

std::uint64_t row_of(const Engine& engine, const std::string& what) {
  std::uint64_t bytes = 0;
  for (const PlanRow& row : engine.plan().rows) bytes += row.what == what ? row.bytes : 0;
  return bytes;
}

class FrozenGroups : public ::testing::TestWithParam<OffloadDevice> {
 protected:
  Settings settings() const {
    Settings s;
    if (GetParam() == OffloadDevice::kNvme) s = testing::all_on_nvme(directory_.string());
    s.tile_elements = 65536;
    s.update_threads = 1;
    return s;
  }
  static testing::Script script() {
    return script_of(Departure::kFrozenGroup, static_cast<std::uint32_t>(kGroups.size()), false);
  }

  const testing::TemporaryDirectory directory_;
};

TEST_P(FrozenGroups, TakeNoGradientsAndNoStateAndTheOthersTrainAsBesideOneThatReceivesNone) {
  std::string parameters[2];
  std::uint64_t gradients[2], state[2];
  for (const bool declared : {false, true}) {
    Engine engine(settings());
    ScriptedTrainer trainer(engine, kGroups, {}, declared ? std::optional(kFrozen) : std::nullopt);
    for (int step = 0; step < 4; ++step) trainer.step(script());
    parameters[declared] = engine.hash_parameters();
    gradients[declared] = row_of(engine, "gradients");
    state[declared] = row_of(engine, "optimizer state");
  }
  EXPECT_EQ(parameters[true], parameters[false]);
  EXPECT_GE(gradients[false], gradients[true] + 2 * 150'000);
  EXPECT_GE(state[false], state[true] + 10 * 150'000);
}

TEST_P(FrozenGroups, MoveWhatThePlanSays) {
  Engine engine(settings());
  ScriptedTrainer trainer(engine, kGroups, {}, kFrozen);
  trainer.step(script());
  engine.finish_step();
  const Stats before = engine.stats();
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) trainer.step(script());
  engine.finish_step();
  const Stats after = engine.stats();
  EXPECT_EQ(static_cast<double>(after.nvme_written_bytes - before.nvme_written_bytes),
            kSteps * engine.plan().nvme_written_bytes_per_step);
}

TEST_P(FrozenGroups, GiveAndTakeTheirWeightsAndRefuseAllElse) {
  Engine engine(settings());
  ScriptedTrainer trainer(engine, kGroups, {}, kFrozen);
  trainer.step(script());
  const ParameterId weight = engine.parameter("group.1.weight");
  const ParameterId bias = engine.parameter("group.1.bias");
  const std::vector<float> gradient(40, 1.0f);
  const std::string before = trainer.hashes();
  EXPECT_CODE(Code::kInvalidArgument, engine.add_gradient(bias, gradient.data(), DType::kF32),
              "'group.1.bias'");
  const auto ignore = [](std::uint64_t, std::span<const std::byte>) {};
  const auto change = [](std::uint64_t, std::span<std::byte> values) {
    std::memset(values.data(), 0x3d, values.size());
  };
  for (const Content content : {Content::kMaster, Content::kExpAvg, Content::kExpAvgSq}) {
    EXPECT_CODE(Code::kInvalidArgument, engine.store(weight, content, ignore), "group.1");
    EXPECT_CODE(Code::kInvalidArgument, engine.load(weight, content, change), "group.1");
  }
  EXPECT_EQ(trainer.hashes(), before);
  engine.load(weight, Content::kWeight, change);
  std::uint64_t elements = 0;
  engine.store(weight, Content::kWeight, [&](std::uint64_t, std::span<const std::byte> values) {
    for (const std::byte value : values) EXPECT_EQ(value, std::byte{0x3d});
    elements += values.size() / 2;
  });
  EXPECT_EQ(elements, 150'000u);
  {
    const Gathered lease = engine.gather(engine.group_of(weight));
    EXPECT_EQ(*static_cast<const std::byte*>(lease.bytes(weight).data), std::byte{0x3d});
  }
  trainer.step(script());
  EXPECT_NE(trainer.hashes(), before);
}

// An adapter beside what it adapts, of one group or, `apart`, of two.
class Adapted {
 public:
  Adapted(Engine& engine, bool apart) : engine_(engine) {
    for (int b = 0; b < kBlocks; ++b) {
      const std::string name = "h." + std::to_string(b);
      std::vector<ParameterSpec> base = {{"base", DType::kBf16, {kBase}, {}, true},
                                         {"codes", DType::kU8, {kBase}, {}, true},
                                         {"scale", DType::kF32, {40}, {}, true}};
      const std::vector<ParameterSpec> adapter = {{"adapter", DType::kBf16, {3000}, {}},
                                                  {"bias", DType::kF32, {40}, {}}};
      if (apart) {
        groups_.push_back({engine.add_group(name + ".frozen", base)});
        groups_.back().push_back(engine.add_group(name, adapter));
      } else {
        base.insert(base.begin() + 1, adapter.begin(), adapter.end());
        groups_.push_back({engine.add_group(name, base)});
      }
    }
    engine.freeze();
    for (const auto& block : groups_) {
      for (const GroupId group : block) {
        engine.load(group, [&](ParameterId id, std::span<std::byte> out) {
          std::ranges::fill(out, static_cast<std::byte>(engine.spec(id).name.size() + 0x36));
        });
      }
    }
  }
  // A gradient hangs on the weights of its block, frozen ones too.
  void step() {
    for (const auto& block : groups_) use(block);
    for (std::size_t b = groups_.size(); b-- > 0;) {
      const float value = use(groups_[b]);
      for (const GroupId group : groups_[b]) {
        for (const ParameterId id : engine_.parameters(group)) {
          const ParameterSpec& spec = engine_.spec(id);
          if (spec.frozen) continue;
          const std::vector<float> gradient(spec.elements(), value);
          engine_.add_gradient(id, gradient.data(), DType::kF32);
        }
      }
    }
    engine_.step({.learning_rate = 1e-2f});
  }
  // By the block's name and the parameter's own.
  std::map<std::string, std::vector<std::byte>> weights() {
    std::map<std::string, std::vector<std::byte>> weights;
    for (std::uint32_t i = 0; i < engine_.parameter_count(); ++i) {
      const std::string& name = engine_.full_name({i});
      std::vector<std::byte>& values = weights[name.substr(0, 3) + name.substr(name.rfind('.'))];
      engine_.store({i}, Content::kWeight, [&](std::uint64_t, std::span<const std::byte> stretch) {
        values.insert(values.end(), stretch.begin(), stretch.end());
      });
    }
    return weights;
  }

  static constexpr int kBlocks = 4;
  static constexpr std::int64_t kBase = 150'000;
  // What a block trains, in whole multiples of 2048 elements.
  static constexpr std::uint64_t kAdapter = 4096, kBias = 2048;

 private:
  float use(const std::vector<GroupId>& block) {
    std::uint64_t seen = 0;
    for (const GroupId group : block) {
      const Gathered lease = engine_.gather(group);
      for (const ParameterId id : engine_.parameters(group)) {
        const DeviceSpan whole = lease.section(engine_.spec(id).dtype), own = lease.bytes(id);
        EXPECT_EQ(static_cast<std::byte*>(own.data),
                  static_cast<std::byte*>(whole.data) + engine_.section_offset_bytes(id));
        EXPECT_LE(engine_.section_offset_bytes(id) + own.size_bytes, whole.size_bytes);
        EXPECT_EQ(whole.size_bytes, engine_.section_size_bytes(group, engine_.spec(id).dtype));
        // A sum, since the two kinds of groups have other orders.
        seen += kernels::xxh3_64({static_cast<const std::byte*>(own.data), own.size_bytes}, 1);
      }
    }
    return static_cast<float>(seen % 2048) / 1024 - 1;
  }

  Engine& engine_;
  std::vector<std::vector<GroupId>> groups_;
};

struct Placement {
  OffloadDevice device;
  UpdateMode mode;
  std::uint64_t host_budget_bytes;
};
class FrozenParameters : public ::testing::TestWithParam<Placement> {
 protected:
  Settings settings() const {
    Settings s;
    if (GetParam().device == OffloadDevice::kNvme) s = testing::all_on_nvme(directory_.string());
    s.tile_elements = 65536;
    s.update_threads = 1;
    s.update_mode = GetParam().mode;
    s.host_budget_bytes = GetParam().host_budget_bytes;
    return s;
  }
  const testing::TemporaryDirectory directory_;
};

TEST_P(FrozenParameters, CostNothingButTheirWeightsBesideTrainedOnesOfTheirGroup) {
  Engine engine(settings());
  Adapted adapted(engine, false);
  using A = Adapted;
  EXPECT_EQ(row_of(engine, "gradients"), A::kBlocks * (A::kAdapter * 2 + A::kBias * 4));
  const std::uint64_t headers = 2 * A::kBlocks * 4096;
  EXPECT_LE(row_of(engine, "optimizer state"),
            A::kBlocks * (A::kAdapter * 10 + A::kBias * 8) + headers);
  adapted.step();
  engine.finish_step();
  const Stats before = engine.stats();
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) adapted.step();
  engine.finish_step();
  const Stats after = engine.stats();
  EXPECT_EQ(static_cast<double>(after.nvme_written_bytes - before.nvme_written_bytes),
            kSteps * engine.plan().nvme_written_bytes_per_step);
  EXPECT_LE(engine.plan().nvme_written_bytes_per_step,
            static_cast<double>(A::kBlocks * (A::kAdapter + A::kBias) * 12 + headers));
}

TEST_P(FrozenParameters, TrainWhatIsBesideThemAsGroupsOfTheirOwnDo) {
  std::map<std::string, std::vector<std::byte>> weights[2];
  std::string state[2];
  for (const bool apart : {false, true}) {
    Engine engine(settings());
    Adapted adapted(engine, apart);
    for (int step = 0; step < 4; ++step) adapted.step();
    weights[apart] = adapted.weights();
    state[apart] = engine.hash_optimizer_state();
  }
  EXPECT_EQ(weights[0].size(), 5u * Adapted::kBlocks);
  EXPECT_EQ(weights[0].at("h.0.codes").size(), std::size_t{Adapted::kBase});
  EXPECT_TRUE(weights[0] == weights[1]);
  EXPECT_EQ(state[0], state[1]);
}

TEST_P(FrozenParameters, RefuseGradientAndStateByName) {
  Engine engine(settings());
  Adapted adapted(engine, false);
  adapted.step();
  const ParameterId base = engine.parameter("h.1.base");
  const std::vector<float> gradient(Adapted::kBase, 1.0f);
  EXPECT_CODE(Code::kInvalidArgument, engine.add_gradient(base, gradient.data(), DType::kF32),
              "'h.1.base' in group 'h.1'");
  const auto ignore = [](std::uint64_t, std::span<const std::byte>) {};
  EXPECT_CODE(Code::kInvalidArgument, engine.store(base, Content::kMaster, ignore),
              "neither master nor moments");
  EXPECT_CODE(Code::kWrongState, engine.set_frozen(base, false), "set_frozen");
  engine.load(base, Content::kWeight, [](std::uint64_t, std::span<std::byte> values) {
    std::ranges::fill(values, std::byte{0x3d});
  });
  const std::vector<std::byte> weights = adapted.weights().at("h.1.base");
  EXPECT_EQ(weights.size(), 2 * static_cast<std::size_t>(Adapted::kBase));
  EXPECT_TRUE(std::ranges::all_of(weights, [](std::byte b) { return b == std::byte{0x3d}; }));
}

TEST(Bytes, AreRefusedAsWhatIsTrainedAndAsGradients) {
  Engine engine(Settings{});
  engine.add_group("h", {{"codes", DType::kU8, {64}, {}}, {"scale", DType::kF32, {64}, {}}});
  EXPECT_CODE(Code::kInvalidArgument, engine.freeze(), "'h.codes' is U8");
  engine.set_frozen(engine.parameter("h.codes"), true);
  engine.freeze();
  engine.load(GroupId{0}, [](ParameterId, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{0x3f});
  });
  const std::vector<std::byte> gradient(64);
  EXPECT_CODE(Code::kInvalidArgument,
              engine.add_gradient(engine.parameter("h.scale"), gradient.data(), DType::kU8),
              "the gradient is U8");
}

INSTANTIATE_TEST_SUITE_P(
    Places, FrozenParameters,
    ::testing::Values(Placement{OffloadDevice::kCpu, UpdateMode::kBarrier, 0},
                      Placement{OffloadDevice::kNvme, UpdateMode::kBarrier, 0},
                      Placement{OffloadDevice::kNvme, UpdateMode::kDefer, 0},
                      Placement{OffloadDevice::kNvme, UpdateMode::kDefer, 6 << 20}),
    [](const auto& info) {
      return std::string(info.param.device == OffloadDevice::kNvme ? "Nvme" : "Memory") +
             (info.param.mode == UpdateMode::kDefer ? "Deferred" : "") +
             (info.param.host_budget_bytes > 0 ? "WithABudget" : "");
    });

INSTANTIATE_TEST_SUITE_P(Places, FrozenGroups,
                         ::testing::Values(OffloadDevice::kCpu, OffloadDevice::kNvme),
                         [](const auto& info) {
                           return info.param == OffloadDevice::kNvme ? "Nvme" : "Memory";
                         });
}  // namespace
}  // namespace headrace::frozen_test
