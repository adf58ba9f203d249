// SPDX-License-Identifier: Apache-2.0
// What a trainer does to a model besides training it: looking at its buffers, changing its values,
// taking it back.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <string>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/refusals.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Code;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::all_parked;
using headrace_test::expect_error;
using headrace_test::Mlp;
using headrace_test::MlpImpl;
using headrace_test::parked;
using headrace_test::same_bits;
using headrace_test::SwapFolder;

// ---- buffers ----

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : linear(register_module("linear", torch::nn::Linear(4, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(Normed);

std::vector<std::string> names_of(const std::vector<std::pair<std::string, torch::Tensor>>& list) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : list) names.push_back(name);
  return names;
}

TEST(Buffers, OfModulesFactoriesAndTheRestAreListedOnce) {
  Normed module;
  struct Model : torch::nn::Module {};
  const auto model = std::make_shared<Model>();
  model->register_module("normed", module.ptr());
  model->register_buffer("mask", torch::ones({2}));
  Offload offload((headrace::Settings()));
  offload.add_group("a", module);
  offload.add_rest(*model);
  offload.add_group("b", [] { return Normed(); });
  EXPECT_EQ(offload.buffers().size(), 4u) << "a factory's module does not exist yet";
  offload.freeze();
  EXPECT_EQ(
      names_of(offload.buffers()),
      (std::vector<std::string>{"a.norm.running_mean", "a.norm.running_var",
                                "a.norm.num_batches_tracked", "rest.mask", "b.norm.running_mean",
                                "b.norm.running_var", "b.norm.num_batches_tracked"}));
}

TEST(Buffers, OfBatchNormAreThoseOfThePlainModelAndAlwaysThere) {
  torch::manual_seed(4);
  Normed plain;
  torch::manual_seed(4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("normed", [] { return Normed(); });
  offload.freeze();
  for (int i = 0; i < 3; ++i) {
    const torch::Tensor x = torch::randn({8, 4});
    offload(group, x);
    plain(x);
  }
  EXPECT_TRUE(all_parked(*group.module()));
  const auto expected = plain->named_buffers();
  for (const auto& [name, tensor] : offload.buffers()) {
    EXPECT_FALSE(parked(tensor)) << name;
    EXPECT_TRUE(same_bits(tensor, expected[name.substr(std::string("normed.").size())])) << name;
  }
  group.module()->eval();
  plain->eval();
  EXPECT_TRUE(same_bits(offload(group, torch::ones({2, 4})), plain(torch::ones({2, 4}))));
}

// ---- strides ----

TEST(Strides, ThatAreNotRowMajorAreRefusedByNameWithWhatHelps) {
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 3));
  convolution->weight.set_data(convolution->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  torch::nn::Linear transposed(4, 3);
  transposed->weight.set_data(torch::zeros({4, 3}).t());
  torch::nn::Linear sliced(4, 3);
  sliced->weight.set_data(torch::zeros({3, 8}).slice(1, 0, 4));
  Offload offload((headrace::Settings()));
  const std::vector<std::string> parts{"'x.weight'", "row-major", "contiguous()"};
  expect_error([&] { offload.add_group("x", convolution); }, Code::kUnsupported, parts);
  expect_error([&] { offload.add_group("x", transposed); }, Code::kUnsupported, parts);
  expect_error([&] { offload.add_group("x", sliced); }, Code::kUnsupported, parts);
  expect_error([&] { offload.add_rest(*transposed, "x"); }, Code::kUnsupported, parts);
  expect_error([&] { offload.add_group("x", [&] { return transposed; }); }, Code::kUnsupported,
               parts);
  convolution->weight.set_data(convolution->weight.contiguous());
  const torch::Tensor expected = convolution(torch::ones({1, 3, 5, 5})).detach();
  const auto group = offload.add_group("x", convolution);
  offload.freeze();
  EXPECT_TRUE(same_bits(offload(group, torch::ones({1, 3, 5, 5})), expected));
}

// ---- restore ----

struct TwoBlocksImpl : torch::nn::Module {
  TwoBlocksImpl()
      : first(register_module("first", Mlp(4, 8, 4))),
        second(register_module("second", Mlp(4, 8, 4))),
        scale(register_parameter("scale", torch::ones({4}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(first(x)) * scale; }
  Mlp first, second;
  torch::Tensor scale;
};
TORCH_MODULE(TwoBlocks);

struct Offloaded {
  explicit Offloaded(headrace::Settings settings) : offload(std::move(settings)) {
    torch::manual_seed(8);
    model = TwoBlocks();
    groups.push_back(offload.add_group("first", model->first));
    groups.push_back(offload.add_group("second", model->second));
    offload.add_rest(model, "");
    offload.freeze();
  }
  torch::Tensor loss() {
    torch::Tensor x = torch::ones({2, 4});
    for (auto& group : groups) x = offload(group, x);
    return (x * model->scale).square().sum();
  }
  void step() {
    loss().backward();
    offload.step({.learning_rate = 0.1f});
  }
  Offload offload;
  TwoBlocks model{nullptr};
  std::vector<Group<MlpImpl>> groups;
};
constexpr std::uint64_t kTwoBlocksBytes = (2 * (4 * 8 + 8 + 8 * 4 + 4) + 4) * sizeof(float);

TEST(Restore, GivesAModelThatOutlivesItsOffloadAndTrainsOnSavesAndLoads) {
  const SwapFolder folder;
  TwoBlocks model{nullptr};
  std::vector<torch::Tensor> expected;
  {
    Offloaded offloaded(headrace_test::all_on_nvme(folder.path()));
    model = offloaded.model;
    offloaded.step();
    for (auto& group : offloaded.groups) {
      const auto scope = offloaded.offload.gathered(group);
      for (const auto& parameter : group.module()->parameters())
        expected.push_back(parameter.detach().clone());
    }
    offloaded.loss().backward();  // without a step: dropped
    offloaded.offload.restore();
  }
  const auto restored = model->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(same_bits(restored[i + 1], expected[i])) << i;
  for (const auto& parameter : restored) {
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_FALSE(parameter.grad().defined());
    EXPECT_TRUE(parameter.is_leaf());
  }
  torch::optim::AdamW optimizer(model->parameters());
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    model(torch::ones({2, 4})).square().sum().backward();
    EXPECT_GT(torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0), 0);
    optimizer.step();
  }
  EXPECT_FALSE(same_bits(restored[1], expected[0]));
  std::stringstream file;
  torch::save(model, file);
  TwoBlocks loaded;
  torch::load(loaded, file);
  EXPECT_TRUE(same_bits(loaded->first->first->weight, model->first->first->weight));
}

TEST(Restore, WithinALimitSaysWhatItNeedsAndLeavesAllOffloaded) {
  Offloaded offloaded((headrace::Settings()));
  expect_error([&] { offloaded.offload.restore(kTwoBlocksBytes - 1); }, Code::kOutOfBudget,
               {std::to_string(kTwoBlocksBytes) + " bytes", "group 'first'", "limit_bytes"});
  EXPECT_TRUE(all_parked(*offloaded.model->first));
  offloaded.step();
  offloaded.offload.restore(kTwoBlocksBytes);
  EXPECT_FALSE(parked(offloaded.model->first->first->weight));
}

TEST(Restore, ClosesTheOffload) {
  Offloaded offloaded((headrace::Settings()));
  const torch::Tensor before = offloaded.offload(offloaded.groups[1], torch::ones({2, 4})).sum();
  offloaded.offload.restore();
  expect_error([&] { offloaded.loss(); }, Code::kWrongState,
               {"group 'first'", "restore()", "Call its module itself"});
  expect_error([&] { before.backward(); }, Code::kWrongState, {"group 'second'", "restore()"});
  expect_error([&] { offloaded.offload.restore(); }, Code::kWrongState, {"restore()"});
  offloaded.offload.close();
  EXPECT_FALSE(parked(offloaded.model->first->first->weight)) << "close() has nothing left to park";
}

TEST(Restore, IsRefusedByNameBeforeFreezeAndInsideAScope) {
  Offload unfrozen((headrace::Settings()));
  unfrozen.add_group("late", [] { return Mlp(4, 4, 4); });
  expect_error([&] { unfrozen.restore(); }, Code::kWrongState, {"'late'", "freeze()"});
  Offloaded offloaded((headrace::Settings()));
  const auto scope = offloaded.offload.gathered(offloaded.groups[1]);
  expect_error([&] { offloaded.offload.restore(); }, Code::kWrongState,
               {"restore()", "group 'second'"});
}
}  // namespace
