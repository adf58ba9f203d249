// SPDX-License-Identifier: Apache-2.0
// What the adapter promises of modules: the same values and gradients, everything parked between
// uses, and refusals that name what is wrong.
#include "headrace/torch/offload.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/computing_host.hpp"
#include "torch/models.hpp"
#include "torch/refusals.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Code;
using headrace::Error;
using headrace::Settings;
using headrace::torch::Access;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::all_parked;
using headrace_test::Block;
using headrace_test::BlockImpl;
using headrace_test::expect_error;
using headrace_test::GradientLog;
using headrace_test::make_block;
using headrace_test::Mlp;
using headrace_test::MlpImpl;
using headrace_test::parked;
using headrace_test::same_bits;

constexpr std::int64_t kHidden = 16;

headrace::Settings in_memory() { return {}; }
headrace::Settings accumulating(std::uint32_t steps) {
  headrace::Settings settings;
  settings.gradient_accumulation_steps = steps;
  return settings;
}

// A plain model and the same one offloaded, from one seed.
struct Pair {
  std::vector<Block> plain;
  GradientLog plain_log, offload_log;
  Offload offload;
  std::vector<Group<BlockImpl>> groups;

  Pair(int blocks, bool bf16, headrace::Settings settings = in_memory(),
       headrace::EngineOptions options = {})
      : offload(std::move(settings), std::move(options)) {
    torch::manual_seed(11);
    for (int i = 0; i < blocks; ++i) {
      plain.push_back(make_block(kHidden, bf16));
      plain_log.watch(std::to_string(i) + ".", *plain.back());
    }
    torch::manual_seed(11);
    for (int i = 0; i < blocks; ++i) {
      groups.push_back(offload.add_group("h." + std::to_string(i), [this, bf16, i] {
        Block block = make_block(kHidden, bf16);
        offload_log.watch(std::to_string(i) + ".", *block);
        return block;
      }));
    }
    offload.freeze();
  }
  torch::Tensor plain_forward(torch::Tensor x) {
    for (auto& block : plain) x = block(x);
    return x;
  }
  torch::Tensor offload_forward(torch::Tensor x) {
    for (auto& group : groups) {
      x = offload(group, x);
      EXPECT_TRUE(all_parked(*group.module()));
    }
    return x;
  }
  void expect_equal_gradients(std::size_t passes = 1) {
    ASSERT_EQ(plain_log.all().size(), offload_log.all().size());
    for (const auto& [name, gradients] : plain_log.all()) {
      ASSERT_EQ(gradients.size(), passes) << name;
      ASSERT_EQ(offload_log.of(name).size(), passes) << name;
      for (std::size_t i = 0; i < passes; ++i)
        EXPECT_TRUE(same_bits(gradients[i], offload_log.of(name)[i])) << name;
    }
    for (auto& group : groups) {
      EXPECT_TRUE(all_parked(*group.module())) << group.name();
      for (const auto& parameter : group.module()->parameters())
        EXPECT_TRUE(parked(parameter.grad())) << "the engine has it";
    }
  }
};

torch::Tensor input(bool bf16) {
  torch::manual_seed(5);
  return torch::randn({2, 6, kHidden}).to(bf16 ? torch::kBFloat16 : torch::kFloat);
}

class OffloadTypes : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Types, OffloadTypes, testing::Bool(),
                         [](const auto& info) { return info.param ? "Bf16" : "F32"; });

TEST_P(OffloadTypes, GradientsOfATransformerAreThePlainOnesAndAllIsParkedBetween) {
  Pair pair(3, GetParam());
  const torch::Tensor x = input(GetParam());
  const torch::Tensor expected = pair.plain_forward(x);
  const torch::Tensor output = pair.offload_forward(x);
  EXPECT_TRUE(same_bits(expected, output));
  expected.square().sum().backward();
  output.square().sum().backward();
  pair.expect_equal_gradients();
}

TEST_P(OffloadTypes, InputsThatRequireAGradientReceiveThePlainOne) {
  Pair pair(2, GetParam());
  torch::Tensor a = input(GetParam()).requires_grad_(), b = a.detach().clone().requires_grad_();
  pair.plain_forward(a).sum().backward();
  pair.offload_forward(b).sum().backward();
  EXPECT_TRUE(same_bits(a.grad(), b.grad()));
  pair.expect_equal_gradients();
}

TEST_P(OffloadTypes, EvaluationWithoutGradientsGivesThePlainValues) {
  Pair pair(2, GetParam());
  torch::NoGradGuard no_grad;
  const torch::Tensor output = pair.offload_forward(input(GetParam()));
  EXPECT_TRUE(same_bits(output, pair.plain_forward(input(GetParam()))));
  EXPECT_FALSE(output.requires_grad());
}

// Its copies are done late and in odd order, so that a missing wait reads what was not there yet.
TEST_P(OffloadTypes, ADeviceThatIsLateChangesNothing) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    auto device =
        headrace::device::make_computing_host({headrace::device::HostFlavour::kLate, seed});
    Pair pair(3, GetParam(), accumulating(2), {.device = device});
    for (int i = 0; i < 2; ++i) {
      const torch::Tensor expected = pair.plain_forward(input(GetParam()));
      const torch::Tensor output = pair.offload_forward(input(GetParam()));
      EXPECT_TRUE(same_bits(expected, output)) << "seed " << seed;
      expected.square().sum().backward();
      for (auto& block : pair.plain) block->zero_grad();
      output.square().sum().backward();
    }
    pair.expect_equal_gradients(2);
  }
}

TEST(Offload, TakesValuesFromElsewhere) {
  Offload offload(in_memory());
  const auto group = offload.add_group("h", [] { return make_block(kHidden, false); });
  std::map<std::string, std::uint64_t> bytes;
  offload.take_values_from(
      group, [&](const std::string& parameter, std::uint64_t first, std::span<std::byte> values) {
        EXPECT_EQ(first, 0u);
        bytes[parameter] += values.size();
        const std::vector<float> twos(values.size() / sizeof(float), 2.0f);
        std::memcpy(values.data(), twos.data(), values.size());
      });
  offload.freeze();
  const auto whole = offload.gathered(group);
  for (const auto& item : group.module()->named_parameters()) {
    EXPECT_EQ(bytes[item.key()], item.value().nbytes()) << item.key();
    EXPECT_TRUE(at::all(item.value() == 2).item<bool>()) << item.key();
  }
  expect_error([&] { offload.take_values_from(group, nullptr); }, Code::kWrongState,
               {"take_values_from() for group 'h' after freeze()"});
}

TEST(Offload, FactoriesGiveTheValuesOfTheModelBuiltPlainlyWithTheSameSeed) {
  Pair pair(3, true);
  for (std::size_t i = 0; i < pair.groups.size(); ++i) {
    const auto scope = pair.offload.gathered(pair.groups[i]);
    const auto plain = pair.plain[i]->named_parameters();
    for (const auto& item : pair.groups[i].module()->named_parameters()) {
      EXPECT_TRUE(same_bits(item.value(), plain[item.key()])) << i << " " << item.key();
    }
  }
  const torch::Tensor next = torch::randn({4});
  torch::manual_seed(11);
  for (int i = 0; i < 3; ++i) make_block(kHidden, true);
  EXPECT_TRUE(same_bits(next, torch::randn({4}))) << "numbers drawn afterwards are the same, too";
}

TEST(Offload, AnExistingModuleKeepsItsValues) {
  Mlp mlp(4, 8, 2);
  const torch::Tensor x = torch::randn({3, 4});
  const torch::Tensor expected = mlp(x).detach();
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  EXPECT_TRUE(all_parked(*mlp));
  EXPECT_EQ(group.module().get(), mlp.get());
  EXPECT_TRUE(same_bits(offload(group, x), expected));
}

TEST(Offload, GradientsOfSeveralMicroBatchesAreHandedOverOneByOne) {
  Pair pair(2, false, accumulating(3));
  for (int i = 0; i < 3; ++i) {
    const torch::Tensor x = input(false) * (i + 1);
    pair.plain_forward(x).sum().backward();
    for (auto& block : pair.plain) block->zero_grad();
    pair.offload_forward(x).sum().backward();
  }
  pair.expect_equal_gradients(3);
}

TEST(Offload, ASecondBackwardOverARetainedGraphBindsAgain) {
  Pair pair(2, false, accumulating(2));
  const torch::Tensor a = pair.plain_forward(input(false)).sum(),
                      b = pair.offload_forward(input(false)).sum();
  for (int i = 0; i < 2; ++i) {
    a.backward({}, /*retain_graph=*/true);
    for (auto& block : pair.plain) block->zero_grad();
    b.backward({}, /*retain_graph=*/true);
  }
  pair.expect_equal_gradients(2);
}

TEST(Offload, ABlockCalledTwiceInOneForwardHasTheSumOfBothGradients) {
  Pair pair(2, false);
  const auto twice = [&](auto&& call) { return call(0, call(1, call(0, input(false)))); };
  twice([&](int i, const torch::Tensor& x) { return pair.plain[i](x); }).sum().backward();
  twice([&](int i, const torch::Tensor& x) { return pair.offload(pair.groups[i], x); })
      .sum()
      .backward();
  pair.expect_equal_gradients();
}

TEST(Offload, AGroupWithAnUnusedParameterIsParkedAtTheEndOfBackward) {
  Mlp mlp(4, 4, 4);
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  const auto half = offload.run(group, [&] { return mlp->first(torch::ones({2, 4})); });
  half.sum().backward();
  EXPECT_TRUE(all_parked(*mlp));
  const auto result = offload.step({});
  EXPECT_EQ(result.parameters_updated, 2u);
  EXPECT_EQ(result.parameters_left_alone, 2u);
}

TEST(Offload, GroupsWithUnusedParametersNeedNoMoreMemoryThanOthers) {
  const headrace_test::SwapFolder folder;
  headrace::Settings settings = headrace_test::all_on_nvme(folder.path());
  settings.prefetch_groups = 0;  // memory for one group at a time
  Offload offload(settings);
  std::vector<Group<MlpImpl>> groups;
  for (int i = 0; i < 5; ++i) {
    groups.push_back(offload.add_group("mlp." + std::to_string(i), [] { return Mlp(4, 4, 4); }));
  }
  offload.freeze();
  torch::Tensor x = torch::ones({2, 4});
  for (auto& group : groups) {
    x = offload.run(group, [&] { return group.module()->first(x); });
  }
  x.sum().backward();
  for (auto& group : groups) EXPECT_TRUE(all_parked(*group.module()));
  EXPECT_EQ(offload.step({}).parameters_updated, 10u);
}

TEST(Offload, FrozenParametersAreGatheredAndReceiveNothing) {
  Mlp mlp(4, 4, 4);
  mlp->first->weight.set_requires_grad(false);
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  offload(group, torch::ones({2, 4})).sum().backward();
  EXPECT_TRUE(all_parked(*mlp));
  EXPECT_EQ(offload.step({}).parameters_updated, 3u);
}

TEST(Offload, TensorsThatNeverAskedForGradientsAreFrozenParameters) {
  struct Model : torch::nn::Module {
    Model() {
      fixed = register_parameter("fixed", torch::ones({4}), /*requires_grad=*/false);
      scale = register_parameter("scale", torch::ones({4}));
    }
    torch::Tensor fixed, scale;
  };
  const auto model = std::make_shared<Model>();
  const torch::Tensor loose = torch::ones({4});
  Offload offload(in_memory());
  const auto group = offload.add_group("model", model);
  offload.add_rest({{"loose", loose}}, "");
  offload.freeze();
  offload.run(group, [&] { return model->scale * model->fixed * loose; }).sum().backward();
  EXPECT_TRUE(parked(model->fixed));
  EXPECT_EQ(offload.step({}).parameters_updated, 1u);
  EXPECT_TRUE(same_bits(loose, torch::ones({4})));
}

TEST(Offload, AGroupDeclaredWithoutGradientsKeepsNeitherThemNorStateAndRefusesOne) {
  Mlp frozen(4, 4, 4), trained(4, 4, 4);
  for (torch::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  Offload offload(in_memory());
  const auto below = offload.add_group("frozen", frozen);
  const auto above = offload.add_group("trained", trained);
  offload.expect_no_gradients(below);
  offload.freeze();
  const auto x = torch::ones({2, 4});
  const std::string before = offload.engine().hash_parameters();
  offload(above, offload(below, x)).sum().backward();
  EXPECT_EQ(offload.step({}).parameters_updated, 4u);
  EXPECT_NE(offload.engine().hash_parameters(), before);
  for (torch::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(true);
  const torch::Tensor y = offload(above, offload(below, x)).sum();
  expect_error([&] { y.backward(); }, Code::kInvalidArgument, {"'frozen.", "expect_no_gradients"});
}

TEST(Offload, RunTakesAnySignatureAndBindsForEachOutputThatIsUsed) {
  Mlp mlp(4, 4, 4);
  Mlp plain(4, 4, 4);
  for (const auto& item : plain->named_parameters()) {
    torch::NoGradGuard no_grad;
    item.value().copy_(mlp->named_parameters()[item.key()]);
  }
  GradientLog log;
  log.watch("", *mlp);
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  const auto both = [](Mlp& module, const torch::Tensor& x) {
    const torch::Tensor inner = torch::relu(module->first(x));
    return std::make_pair(std::optional(inner), std::vector<torch::Tensor>{module->second(inner)});
  };
  const torch::Tensor x = torch::randn({3, 4});
  const auto mine = offload.run(group, [&] { return both(mlp, x); });
  const auto theirs = both(plain, x);
  mine.second[0].square().sum().backward();
  theirs.second[0].square().sum().backward();
  for (const auto& item : plain->named_parameters())
    EXPECT_TRUE(same_bits(item.value().grad(), log.of(item.key())[0]));
  offload.run(group, [&] { EXPECT_FALSE(parked(mlp->first->weight)); });
  EXPECT_TRUE(all_parked(*mlp));
}

TEST(Offload, AnExceptionInForwardParksAndTheBlockCanBeCalledAgain) {
  Pair pair(1, false);
  EXPECT_THROW(pair.offload(pair.groups[0], torch::ones({2, 6, kHidden + 1})), c10::Error);
  EXPECT_TRUE(all_parked(*pair.groups[0].module()));
  pair.offload_forward(input(false)).sum().backward();
  pair.plain_forward(input(false)).sum().backward();
  pair.expect_equal_gradients();
}

TEST(Offload, AnExceptionInBackwardParksAtTheNextCall) {
  Pair pair(2, false, accumulating(2));
  torch::Tensor middle = pair.offload(pair.groups[0], input(false));
  middle.register_hook([](const torch::Tensor&) { throw std::runtime_error("from a hook"); });
  EXPECT_THROW(pair.offload(pair.groups[1], middle).sum().backward(), std::runtime_error);
  pair.offload.discard_gradients();
  for (auto& group : pair.groups) EXPECT_TRUE(all_parked(*group.module()));
  pair.offload_forward(input(false)).sum().backward();
  for (auto& group : pair.groups) EXPECT_TRUE(all_parked(*group.module()));
}

TEST(Offload, ErrorsOfTheEngineComeOutOfBackwardAsTheyAre) {
  Pair pair(1, false);
  pair.offload_forward(input(false)).sum().backward();
  // Accumulation was not declared: the engine refuses the second arrival.
  expect_error([&] { pair.offload_forward(input(false)).sum().backward(); }, Code::kWrongState,
               {"h.0."});
}

TEST(Offload, RestIsBoundFromFreezeToCloseAndHasWhatNoGroupHas) {
  struct Model : torch::nn::Module {
    Model()
        : embedding(register_module("wte", torch::nn::Embedding(8, 4))),
          block(register_module("block", Mlp(4, 4, 4))) {}
    torch::nn::Embedding embedding;
    Mlp block;
  };
  const auto model = std::make_shared<Model>();
  model->register_parameter("fixed", torch::ones({2}), /*requires_grad=*/false);
  Offload offload(in_memory());
  const auto group = offload.add_group("block", model->block);
  offload.add_rest(*model);
  offload.freeze();
  EXPECT_EQ(offload.engine().parameter_count(), 5u);
  EXPECT_EQ(offload.engine().full_name(offload.engine().parameter("rest.wte.weight")),
            "rest.wte.weight");
  const auto before = model->embedding->weight.clone();
  // The output projection shares the embedding's weight.
  offload(group, model->embedding(torch::arange(8)))
      .mm(model->embedding->weight.t())
      .sum()
      .backward();
  EXPECT_EQ(offload.step({.learning_rate = 0.5f}).parameters_updated, 5u);
  EXPECT_FALSE(same_bits(before, model->embedding->weight))
      << "the values are the new ones at once";
  offload.close();
  EXPECT_TRUE(parked(model->embedding->weight));
}

TEST(Offload, AGroupWithoutANameLeavesTheNamesAsTheyAre) {
  Offload offload(in_memory());
  offload.add_rest({{"wte.weight", torch::ones({3}).requires_grad_()}}, "");
  EXPECT_EQ(offload.engine().full_name(offload.engine().parameter("wte.weight")), "wte.weight");
}

TEST(Offload, AParameterInTwoGroupsIsRefusedNamingBoth) {
  Mlp a(4, 4, 4), b(4, 4, 4);
  b->first = b->replace_module("first", a->first);
  Offload offload(in_memory());
  offload.add_group("a", a);
  expect_error([&] { offload.add_group("b", b); }, Code::kInvalidArgument,
               {"'b.first.weight'", "group 'b'", "'a.first.weight'", "group 'a'"});
  expect_error(
      [&] {
        offload.add_rest({{"w", a->first->weight}});
      },
      Code::kInvalidArgument, {"'rest.w'", "group 'a'"});
}

// A tie that is a view, not the same tensor, would be undone without a word.
TEST(Offload, AParameterThatIsAViewOfAnotherIsRefusedNamingBoth) {
  Mlp a(4, 4, 4), b(4, 4, 4);
  b->first->weight.set_data(a->second->weight.detach().view({4, 4}));
  Offload offload(in_memory());
  offload.add_group("a", a);
  expect_error([&] { offload.add_group("b", b); }, Code::kInvalidArgument,
               {"'b.first.weight'", "group 'b'", "'a.second.weight'", "group 'a'", "clone()"});
  expect_error(
      [&] {
        offload.add_rest({{"w", a->first->weight.detach().slice(0, 1, 2)}});
      },
      Code::kInvalidArgument, {"'rest.w'", "'a.first.weight'"});
  expect_error([&] { offload.add_group("c", [&] { return b; }); }, Code::kInvalidArgument,
               {"'c.first.weight'", "'a.second.weight'"});
}

TEST(Offload, AViewOfAnotherParameterOfTheGroupIsRefusedNamingBoth) {
  Mlp mlp(4, 4, 4);
  mlp->second->weight.set_data(mlp->first->weight.detach());
  Offload offload(in_memory());
  expect_error([&] { offload.add_group("mlp", mlp); }, Code::kInvalidArgument,
               {"'mlp.second.weight'", "'mlp.first.weight'"});
}

// The first group's values have left the storage by the time the second one's factory runs again.
TEST(Offload, AFactoryThatGivesAViewOnlyLaterIsRefusedNamingBoth) {
  Mlp a(4, 4, 4);
  const torch::Tensor view = a->first->weight.detach().view({4, 4});
  int runs = 0;
  Offload offload(in_memory());
  offload.add_group("a", a);
  offload.add_group("b", [&] {
    Mlp b(4, 4, 4);
    if (++runs == 2) b->first->weight.set_data(view);
    return b;
  });
  expect_error([&] { offload.freeze(); }, Code::kInvalidArgument,
               {"'b.first.weight'", "'a.first.weight'"});
}

// What only shares a storage is not tied: a flat buffer cut into parameters.
TEST(Offload, ParametersInPiecesOfOneBufferAreServed) {
  const torch::Tensor flat = torch::randn({32});
  Mlp mlp(4, 4, 4);
  mlp->first->weight.set_data(flat.slice(0, 0, 16).view({4, 4}));
  mlp->second->weight.set_data(flat.slice(0, 16, 32).view({4, 4}));
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  const auto scope = offload.gathered(group);
  EXPECT_TRUE(same_bits(mlp->second->weight.flatten(), flat.slice(0, 16, 32)));
}

TEST(Offload, AWeightTiedInsideItsGroupIsOneParameter) {
  Mlp mlp(4, 4, 4);
  mlp->second = mlp->replace_module("second", mlp->first);
  Offload offload(in_memory());
  const auto group = offload.add_group("tied", mlp);
  offload.freeze();
  EXPECT_EQ(offload.engine().parameter_count(), 2u);
  offload(group, torch::ones({2, 4})).sum().backward();
  EXPECT_TRUE(all_parked(*mlp));
}

TEST(Offload, AParameterThatLeftItsStorageIsRefusedByName) {
  for (const std::string how : {"set_data", "load", "to"}) {
    Mlp mlp(4, 4, 4), other(4, 4, 4);
    Offload offload(in_memory());
    const auto group = offload.add_group("mlp", mlp);
    std::stringstream file;
    torch::save(other, file);
    offload.freeze();
    if (how == "set_data") mlp->second->weight.set_data(torch::zeros({4, 4}));
    if (how == "load") {
      const auto scope = offload.gathered(group);
      torch::load(mlp, file);
    }
    if (how == "to") {
      const auto scope = offload.gathered(group);
      mlp->to(torch::kDouble);
    }
    const std::string name = how == "set_data" ? "'mlp.second.weight'" : "'mlp.first.weight'";
    expect_error(
        [&] {
          offload(group, torch::ones({2, 4}));
        },
        Code::kWrongState, {name, "group 'mlp'", "torch::load", "Access::kModify).release()"});
    expect_error([&] { offload.step({}); }, Code::kWrongState, {name});
    offload.close();
    expect_error([&] { offload.step({}); }, Code::kWrongState, {"group 'mlp'", "close()"});
  }
}

TEST(Offload, WhatLeftItsStorageIsTakenInOrDroppedAsTheErrorSays) {
  const headrace_test::SwapFolder folder;
  for (const Settings& settings : {in_memory(), headrace_test::all_on_nvme(folder.path())}) {
    Mlp mlp(4, 4, 4), other(4, 4, 4);
    Offload offload(settings);
    const auto group = offload.add_group("mlp", mlp);
    const torch::Tensor scale = torch::ones({4}).requires_grad_();
    const auto rest = offload.add_rest({{"scale", scale}}, "");
    offload.freeze();
    const torch::Tensor x = torch::ones({2, 4});
    const torch::Tensor before = offload(group, x).detach();
    mlp->first->weight.set_data(torch::zeros({4, 4}));
    offload.gathered(group, Access::kModify).discard();
    EXPECT_TRUE(same_bits(offload(group, x), before));
    std::stringstream file;
    torch::save(other, file);
    {
      const auto scope = offload.gathered(group);
      torch::load(mlp, file);
    }
    expect_error([&] { offload(group, x); }, Code::kWrongState, {"torch::load"});
    offload.gathered(group, Access::kModify).release();
    EXPECT_TRUE(all_parked(*mlp));
    EXPECT_TRUE(same_bits(offload(group, x), other(x)));
    scale.set_data(torch::full({4}, 3.0f));
    expect_error([&] { offload.step({}); }, Code::kWrongState, {"'scale'"});
    offload.gathered(*rest, Access::kModify).release();
    (offload(group, x) * scale).sum().backward();
    EXPECT_EQ(scale[0].item<float>(), 3);
    EXPECT_EQ(offload.step({}).parameters_updated, 5u);
  }
}

TEST(Offload, AReplacedGradientHookIsRefusedByName) {
  Mlp mlp(4, 4, 4);
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  GradientLog log;
  log.watch("", mlp->first->bias);
  expect_error(
      [&] {
        offload(group, torch::ones({2, 4}));
      },
      Code::kWrongState, {"'mlp.first.bias'", "hook"});
}

// By torch's operators, which count, and around them. The engine's masters know of none.
const std::pair<const char*, std::function<void(torch::Tensor)>> kWrites[] = {
    {"operator", [](torch::Tensor bias) { bias.mul_(2); }},
    {"data", [](torch::Tensor bias) { bias.mutable_data_ptr<float>()[2] = 5; }},
    {"accessor", [](torch::Tensor bias) { bias.accessor<float, 1>()[0] = -bias[0].item<float>(); }},
    {"signs",  // two at once, which cancel in weak checksums
     [](torch::Tensor bias) {
       for (int i = 0; i < 4; ++i) bias.mutable_data_ptr<float>()[i] *= -1;
     }},
};

TEST(Offload, WhatIsWrittenInAReadScopeIsRefusedUntilValuesAreLoaded) {
  const headrace_test::SwapFolder folder;
  for (const Settings& settings : {in_memory(), headrace_test::all_on_nvme(folder.path())}) {
    for (const auto& [name, write] : kWrites) {
      SCOPED_TRACE(name);
      Mlp mlp(4, 4, 4);
      Offload offload(settings);
      const auto group = offload.add_group("mlp", mlp);
      offload.freeze();
      { const auto read = offload.gathered(group); }
      offload(group, torch::ones({2, 4}));
      {
        const auto scope = offload.gathered(group);
        const torch::NoGradGuard no_grad;
        write(mlp->first->bias);
      }
      for (int time = 0; time < 2; ++time) {  // not said once and then trained on
        expect_error(
            [&] {
              offload(group, torch::ones({2, 4}));
            },
            Code::kWrongState, {"'mlp.first.bias'", "written", "Access::kModify"});
        expect_error([&] { offload.step({}); }, Code::kWrongState, {"'mlp.first.bias'"});
        expect_error([&] { offload.restore(); }, Code::kWrongState, {"'mlp.first.bias'"});
        // Nor is it saved by who handles the error.
        expect_error([&] { offload.engine().hash_parameters(); }, Code::kWrongState,
                     {"'mlp.first.bias'"});
        expect_error(
            [&] {
              offload.engine().store({0}, headrace::Content::kMaster,
                                     [](std::uint64_t, std::span<const std::byte>) {});
            },
            Code::kWrongState, {"'mlp.first.bias'", "discard_gradients()"});
      }
      offload.engine().load(group.id(), [](headrace::ParameterId, std::span<std::byte> values) {
        std::ranges::fill(values, std::byte{0});
      });
      EXPECT_EQ(offload(group, torch::ones({2, 4})).sum().item<float>(), 0);
      offload.close();
    }
  }
}

TEST(Offload, ValuesLoadedDuringAReadScopeAreNoWrite) {
  Mlp mlp(4, 4, 4);
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  {
    const auto scope = offload.gathered(group);
    offload.engine().load(group.id(), [](headrace::ParameterId, std::span<std::byte> values) {
      std::ranges::fill(values, std::byte{0});
    });
  }
  EXPECT_EQ(offload(group, torch::ones({2, 4})).sum().item<float>(), 0);
}

TEST(Offload, AReadScopeMayEndAfterAnInterruptWhateverWasWritten) {
  for (const auto& [name, write] : kWrites) {
    SCOPED_TRACE(name);
    Mlp mlp(4, 4, 4);
    Offload offload(in_memory());
    const auto group = offload.add_group("mlp", mlp);
    offload.freeze();
    {
      const auto scope = offload.gathered(group);
      offload.interrupt();
      const torch::NoGradGuard no_grad;
      write(mlp->first->bias);
    }
    expect_error([&] { offload.step({}); }, Code::kInterrupted, {"interrupted"});
    offload.close();
  }
}

TEST(Offload, AModuleThatIsNoneIsRefused) {
  Offload offload(in_memory());
  expect_error([&] { offload.add_group("none", std::shared_ptr<MlpImpl>()); },
               Code::kInvalidArgument, {"empty module"});
  expect_error([&] { offload.add_group("none", [] { return std::shared_ptr<MlpImpl>(); }); },
               Code::kInvalidArgument, {"empty module"});
}

TEST(Offload, AGroupWhoseParametersAreAllSharedIsRefusedAndTheSharedOnesHaveAHandle) {
  torch::nn::Linear head(4, 4);
  Offload offload(in_memory());
  const auto shared = offload.add_shared({{"w", head->weight}, {"b", head->bias}});
  expect_error([&] { offload.add_group("head", head); }, Code::kInvalidArgument,
               {"group 'head'", "add_shared()", "'weight'"});
  ASSERT_TRUE(shared);
  offload.expect_repeated_gradients(*shared);
  offload.freeze();
  {
    const auto scope = offload.gathered(*shared, headrace::torch::Access::kModify);
    torch::nn::init::zeros_(head->weight);
  }
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(head->weight.abs().sum().item<float>(), 0);
}

TEST(Offload, OneThatWasMovedFromSaysSo) {
  Mlp mlp(4, 4, 4);
  Offload from(in_memory());
  const auto group = from.add_group("mlp", mlp);
  Offload to(std::move(from));
  to.freeze();
  expect_error([&] { from(group, torch::ones({2, 4})); }, Code::kWrongState, {"moved"});
  expect_error([&] { from.step({}); }, Code::kWrongState, {"moved"});
  expect_error([&] { from.restore(); }, Code::kWrongState, {"moved"});
  from.interrupt();
  to(group, torch::ones({2, 4}));
}

TEST(Offload, AParameterThatReplacesARegisteredOneIsRefused) {
  {
    Mlp mlp(4, 4, 4);
    Offload offload(in_memory());
    const auto group = offload.add_group("mlp", mlp);
    mlp->first = mlp->replace_module("first", torch::nn::Linear(4, 4));
    expect_error([&] { offload.freeze(); }, Code::kWrongState, {"'mlp.first.weight'", "replaced"});
  }
  Mlp mlp(4, 4, 4);
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  const auto first = mlp->first;
  {
    auto scope = offload.gathered(group, headrace::torch::Access::kModify);
    mlp->first = mlp->replace_module("first", torch::nn::Linear(4, 4));
    expect_error([&] { scope.release(); }, Code::kWrongState, {"'mlp.first.weight'", "replaced"});
    mlp->first = mlp->replace_module("first", first);
    scope.release();
  }
  offload(group, torch::ones({2, 4}));
}

TEST(Offload, AParameterThatWasFrozenForAddRestStaysTorchsAndMayNotBeTrained) {
  struct Model : torch::nn::Module {
    Model() {
      scale = register_parameter("scale", torch::ones({4}));
      fixed = register_parameter("fixed", torch::ones({4}), /*requires_grad=*/false);
    }
    torch::Tensor scale, fixed;
  };
  const auto model = std::make_shared<Model>();
  Offload offload(in_memory());
  offload.add_rest(*model, "");
  offload.freeze();
  ASSERT_EQ(offload.buffers().size(), 1u);
  EXPECT_EQ(offload.buffers()[0].first, "fixed");
  (model->scale * model->fixed).sum().backward();
  offload.step({});
  model->fixed.set_requires_grad(true);
  (model->scale * model->fixed).sum().backward();
  expect_error([&] { offload.step({}); }, Code::kWrongState, {"'fixed'", "add_rest()"});
}

TEST(Offload, TypesItCannotKeepAreRefusedByName) {
  Offload offload(in_memory());
  Mlp mlp(4, 4, 4);
  mlp->second->to(torch::kDouble);
  expect_error([&] { offload.add_group("mlp", mlp); }, Code::kUnsupported,
               {"'mlp.second.weight'", "Double", "kBFloat16"});
}

TEST(Offload, ASparseGradientIsRefusedByName) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(8, 4).sparse(true));
  Offload offload(in_memory());
  offload.add_rest(*embedding);
  offload.freeze();
  expect_error([&] { embedding(torch::arange(3)).sum().backward(); }, Code::kUnsupported,
               {"'rest.weight'", "sparse"});
}

TEST(Offload, AGradientWithOtherStridesArrivesRowMajor) {
  headrace::torch::Offload offload(in_memory());
  torch::Tensor weight = torch::zeros({3, 4}).requires_grad_();
  offload.add_rest({{"w", weight}});
  offload.freeze();
  weight.mutable_grad() = torch::zeros({4, 3}).t();  // torch adds into it and keeps its strides
  const torch::Tensor sign = torch::arange(12).reshape({3, 4}).remainder(2) * 2 - 1;
  (weight * sign).sum().backward();
  offload.step({.learning_rate = 0.25f});
  EXPECT_TRUE(same_bits(weight.detach().sign(), -sign.to(torch::kFloat)));
}

TEST(Offload, CallsOutOfOrderAreRefused) {
  Mlp mlp(4, 4, 4);
  Offload offload(in_memory());
  const auto group = offload.add_group("mlp", [] { return Mlp(4, 4, 4); });
  expect_error([&] { group.module(); }, Code::kWrongState, {"'mlp'", "freeze()"});
  expect_error([&] { offload.no_decay(); }, Code::kWrongState, {"'mlp'"});
  expect_error(
      [&] {
        offload(group, torch::ones({2, 4}));
      },
      Code::kWrongState, {"'mlp'", "freeze()"});
  offload.freeze();
  expect_error([&] { offload.add_group("late", mlp); }, Code::kWrongState, {"'late'", "freeze()"});
  {
    const auto scope = offload.gathered(group);
    expect_error([&] { offload.step({}); }, Code::kWrongState, {"step()", "'mlp'"});
    expect_error([&] { offload.close(); }, Code::kWrongState, {"close()", "'mlp'"});
  }
  const torch::Tensor output = offload(group, torch::ones({2, 4}));
  offload.close();
  offload.close();
  expect_error(
      [&] {
        offload(group, torch::ones({2, 4}));
      },
      Code::kWrongState, {"'mlp'", "close()"});
  expect_error([&] { output.sum().backward(); }, Code::kWrongState, {"'mlp'", "close()"});
}

TEST(Offload, AFactoryThatChangesItsMindIsRefused) {
  Offload offload(in_memory());
  std::int64_t hidden = 4;
  offload.add_group("mlp", [&] { return Mlp(4, hidden++, 4); });
  expect_error([&] { offload.freeze(); }, Code::kInvalidArgument, {"'mlp'", "factory"});
}

TEST(Offload, ABackwardAcrossAStepIsRefusedByTorch) {
  Pair pair(1, false);
  const torch::Tensor before = pair.offload_forward(input(false));
  pair.offload_forward(input(false)).sum().backward();
  pair.offload.step({});
  EXPECT_THROW(before.sum().backward(), c10::Error) << "its saved weights are other ones now";
  pair.offload.discard_gradients();
  pair.offload_forward(input(false)).sum().backward();
}

TEST(Offload, ATemporaryOffloadMayEndBeforeAScope) {
  Mlp mlp(4, 4, 4);
  std::optional<Offload> offload(std::in_place, in_memory());
  const auto group = offload->add_group("mlp", mlp);
  offload->freeze();
  {
    const auto scope = offload->gathered(group);
    offload.reset();
    EXPECT_EQ(mlp->first->weight.sizes(), (std::vector<std::int64_t>{4, 4}));
    EXPECT_TRUE(torch::isfinite(mlp->first->weight).all().item<bool>());
  }
  EXPECT_TRUE(all_parked(*mlp));
}
}  // namespace
