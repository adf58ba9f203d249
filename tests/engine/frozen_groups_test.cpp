// SPDX-License-Identifier: Apache-2.0
// frozen_groups_test: groups that are declared to receive no gradient: what they do not take, what
// they refuse, and that training beside them is the same.
#include <gtest/gtest.h>

#include <cstring>

#include "headrace/engine.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::frozen_groups_test {
namespace {
using testing::Departure;
using testing::ScriptedTrainer;

const std::vector<std::int64_t> kGroups = {3000, 150'000, 70'000};  // the middle one is frozen
constexpr std::uint32_t kFrozen = 1;

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
  static std::uint64_t bytes_of(const Engine& engine, const std::string& what) {
    std::uint64_t bytes = 0;
    for (const PlanRow& row : engine.plan().rows) bytes += row.what == what ? row.bytes : 0;
    return bytes;
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
    gradients[declared] = bytes_of(engine, "gradients");
    state[declared] = bytes_of(engine, "optimizer state");
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

INSTANTIATE_TEST_SUITE_P(Places, FrozenGroups,
                         ::testing::Values(OffloadDevice::kCpu, OffloadDevice::kNvme),
                         [](const auto& info) {
                           return info.param == OffloadDevice::kNvme ? "Nvme" : "Memory";
                         });
}  // namespace
}  // namespace headrace::frozen_groups_test
