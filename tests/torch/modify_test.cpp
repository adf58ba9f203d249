// SPDX-License-Identifier: Apache-2.0
// gathered(group, kModify): what was changed is the engine's afterwards, all else is as it was, and
// nobody uses the group meanwhile.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/refusals.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Code;
using headrace::Content;
using headrace::OffloadDevice;
using headrace::Settings;
using headrace::torch::Access;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::all_parked;
using headrace_test::expect_error;
using headrace_test::Mlp;
using headrace_test::MlpImpl;
using headrace_test::same_bits;
using headrace_test::SwapFolder;

// A bf16 block with masters of more bits, and an f32 weight that is bound all the time.
struct Trainer {
  explicit Trainer(Settings settings = {}) : offload(std::move(settings)) {
    torch::manual_seed(6);
    scale = torch::ones({4}).requires_grad_();
    group.emplace(offload.add_group("mlp", [] {
      Mlp mlp(4, 300, 4);
      mlp->to(torch::kBFloat16);
      return mlp;
    }));
    rest.emplace(*offload.add_rest({{"scale", scale}}));
    offload.freeze();
  }
  torch::Tensor loss() {
    const torch::Tensor x = torch::ones({2, 4}, torch::kBFloat16);
    return (offload(*group, x).to(torch::kFloat) * scale).square().sum();
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      loss().backward();
      offload.step({.learning_rate = 1e-2f});
    }
  }
  torch::Tensor stored(const std::string& name, Content content) {
    auto& engine = offload.engine();
    const auto id = engine.parameter(name);
    torch::Tensor values = torch::empty(engine.spec(id).shape);
    engine.store(id, content, [&](std::uint64_t first, std::span<const std::byte> bytes) {
      std::memcpy(values.data_ptr<float>() + first, bytes.data(), bytes.size());
    });
    return values;
  }
  torch::Tensor& weight() { return group->module()->first->weight; }
  std::string hashes() {
    return offload.engine().hash_parameters() + " " + offload.engine().hash_optimizer_state();
  }

  Offload offload;
  torch::Tensor scale;
  std::optional<Group<MlpImpl>> group;
  std::optional<Group<torch::nn::Module>> rest;
};

TEST(Modify, OneElementChangesItsMasterAndNothingElse) {
  Trainer trainer;
  trainer.steps(2);
  torch::Tensor expected = trainer.stored("mlp.first.weight", Content::kMaster);
  const torch::Tensor moment = trainer.stored("mlp.first.weight", Content::kExpAvg);
  const torch::Tensor other = trainer.stored("mlp.second.weight", Content::kMaster);
  EXPECT_FALSE(same_bits(expected, expected.to(torch::kBFloat16).to(torch::kFloat)))
      << "masters have bits that weights have not";
  {
    const auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
    torch::NoGradGuard no_grad;
    trainer.weight().index_put_({7, 2}, 0.5);
  }
  EXPECT_TRUE(all_parked(*trainer.group->module()));
  expected.index_put_({7, 2}, 0.5);
  EXPECT_TRUE(same_bits(trainer.stored("mlp.first.weight", Content::kMaster), expected));
  EXPECT_TRUE(same_bits(trainer.stored("mlp.first.weight", Content::kExpAvg), moment));
  EXPECT_TRUE(same_bits(trainer.stored("mlp.second.weight", Content::kMaster), other));
  const auto scope = trainer.offload.gathered(*trainer.group);
  EXPECT_EQ(trainer.weight().index({7, 2}).item<float>(), 0.5f);
}

TEST(Modify, WithoutAChangeLeavesEveryBit) {
  Trainer trainer;
  trainer.steps(2);
  const std::string before = trainer.hashes();
  trainer.offload.gathered(*trainer.group, Access::kModify).release();
  EXPECT_EQ(trainer.hashes(), before);
}

TEST(Modify, GivesTheSameBitsWhereverTheBytesLive) {
  const SwapFolder folder;
  const auto run = [&](OffloadDevice state, OffloadDevice parameters) {
    Settings settings = headrace_test::all_on_nvme(folder.path());
    settings.offload_optimizer = state;
    settings.offload_parameters = parameters;
    if (state != OffloadDevice::kNvme && parameters != OffloadDevice::kNvme)
      settings.nvme_paths = {};
    Trainer trainer(settings);
    trainer.steps(2);
    {
      const auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
      torch::NoGradGuard no_grad;
      trainer.weight().slice(0, 100, 200).mul_(-2);
      trainer.group->module()->second->bias.zero_();
    }
    trainer.steps(2);
    return trainer.hashes();
  };
  const std::string memory = run(OffloadDevice::kCpu, OffloadDevice::kNone);
  EXPECT_EQ(run(OffloadDevice::kNvme, OffloadDevice::kNvme), memory);
  EXPECT_EQ(run(OffloadDevice::kNvme, OffloadDevice::kNone), memory);
  EXPECT_EQ(run(OffloadDevice::kNone, OffloadDevice::kNone), memory);
}

TEST(Modify, KeepsGradientsThatHaveArrived) {
  Trainer modified, other;
  for (Trainer* trainer : {&modified, &other}) trainer->loss().backward();
  modified.offload.gathered(*modified.group, Access::kModify).release();
  for (Trainer* trainer : {&modified, &other}) {
    EXPECT_EQ(trainer->offload.step({.learning_rate = 0.1f}).parameters_updated, 5u);
  }
  EXPECT_EQ(modified.hashes(), other.hashes());
}

TEST(Modify, TakesWhatTorchLoadPutInPlaceOfTheParameters) {
  Trainer trainer;
  Mlp saved(4, 300, 4);
  saved->to(torch::kBFloat16);
  std::stringstream file;
  torch::save(saved, file);
  {
    const auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
    Mlp mlp(trainer.group->module());
    torch::load(mlp, file);
  }
  EXPECT_TRUE(all_parked(*trainer.group->module())) << "they are on the group's storage again";
  const auto scope = trainer.offload.gathered(*trainer.group);
  EXPECT_TRUE(same_bits(trainer.weight(), saved->first->weight));
}

TEST(Modify, WorksOnWhatIsAlwaysBound) {
  Trainer trainer;
  trainer.steps(1);
  {
    const auto scope = trainer.offload.gathered(*trainer.rest, Access::kModify);
    expect_error([&] { trainer.offload.step({}); }, Code::kWrongState, {"step()", "'rest'"});
    torch::NoGradGuard no_grad;
    trainer.scale.fill_(3);
  }
  EXPECT_TRUE(same_bits(trainer.scale.detach(), torch::full({4}, 3.0f))) << "bound again at once";
  EXPECT_TRUE(same_bits(trainer.stored("rest.scale", Content::kMaster), torch::full({4}, 3.0f)));
  trainer.steps(1);
}

TEST(Modify, RefusesEverybodyElseByName) {
  Trainer trainer;
  {
    const auto reading = trainer.offload.gathered(*trainer.group);
    expect_error([&] { auto s = trainer.offload.gathered(*trainer.group, Access::kModify); },
                 Code::kWrongState, {"group 'mlp'", "in use"});
  }
  const torch::Tensor before =
      trainer.offload(*trainer.group, torch::ones({2, 4}, torch::kBFloat16));
  {
    const auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
    const std::vector<std::string> parts{"group 'mlp'", "being changed"};
    expect_error([&] { trainer.loss(); }, Code::kWrongState, parts);
    expect_error([&] { before.sum().backward(); }, Code::kWrongState, parts);
    expect_error([&] { auto s = trainer.offload.gathered(*trainer.group); }, Code::kWrongState,
                 parts);
    expect_error([&] { auto s = trainer.offload.gathered(*trainer.group, Access::kModify); },
                 Code::kWrongState, {"group 'mlp'", "in use"});
    for (const std::string call : {"step()", "close()", "restore()"}) {
      expect_error(
          [&] {
            if (call == "step()") trainer.offload.step({});
            if (call == "close()") trainer.offload.close();
            if (call == "restore()") trainer.offload.restore();
          },
          Code::kWrongState, {call, "group 'mlp'"});
    }
  }
  EXPECT_THROW(before.sum().backward(), c10::Error) << "its weights are other ones now";
  trainer.offload.discard_gradients();
  trainer.steps(1);
}

TEST(Modify, DropsTheChangesWhereAnExceptionPassesOrTheyAreDiscarded) {
  Trainer trainer;
  trainer.steps(1);
  const std::string before = trainer.hashes();
  const auto zero = [&] {
    torch::NoGradGuard no_grad;
    trainer.weight().zero_();
  };
  try {
    const auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
    zero();
    throw std::runtime_error("halfway");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(trainer.hashes(), before);
  auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
  zero();
  scope.discard();
  scope.release();
  EXPECT_EQ(trainer.hashes(), before);
  trainer.steps(1);
}

TEST(Modify, IntoAnotherTypeIsRefusedByNameAndMayBeUndone) {
  Trainer trainer;
  auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
  {
    torch::NoGradGuard no_grad;
    trainer.weight().zero_();
  }
  trainer.group->module()->to(torch::kDouble);
  expect_error([&] { scope.release(); }, Code::kWrongState,
               {"'mlp.first.weight'", "group 'mlp'", "Double", "discard()"});
  trainer.group->module()->to(torch::kBFloat16);
  scope.release();
  EXPECT_EQ(trainer.stored("mlp.first.weight", Content::kMaster).abs().max().item<float>(), 0);
  trainer.steps(1);
}

TEST(Modify, WhatTheBraceCouldNotWriteBackTheNextCallReports) {
  Trainer trainer;
  {
    const auto scope = trainer.offload.gathered(*trainer.group, Access::kModify);
    trainer.group->module()->to(torch::kDouble);
  }
  expect_error([&] { trainer.loss(); }, Code::kWrongState,
               {"group 'mlp'", "not written back", "'mlp.first.weight'"});
  EXPECT_NO_THROW(trainer.loss()) << "the changes were dropped";
}
}  // namespace
