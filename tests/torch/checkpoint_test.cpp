// SPDX-License-Identifier: Apache-2.0
// Checkpointed blocks against the same blocks run plainly: gradients bit for bit, with dropout,
// whatever the signature, and nothing bound afterwards.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
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
using headrace_test::Block;
using headrace_test::expect_error;
using headrace_test::GradientLog;
using headrace_test::make_block;
using headrace_test::same_bits;

constexpr std::int64_t kHidden = 16;

// A transformer block with dropout behind it, and a switch to make it fail.
struct DroppingImpl : torch::nn::Module {
  explicit DroppingImpl(bool bf16)
      : block(register_module("block", make_block(kHidden, bf16))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    ++runs;
    if (fail_at == runs) throw std::runtime_error("from the block");
    return dropout(block(x));
  }
  Block block;
  torch::nn::Dropout dropout;
  int runs = 0, fail_at = -1;
};
TORCH_MODULE(Dropping);

struct Pair {
  explicit Pair(int blocks, bool bf16 = false, headrace::Settings settings = {},
                bool repeated = false)
      : offload(std::move(settings)) {
    torch::manual_seed(11);
    for (int i = 0; i < blocks; ++i) {
      plain.emplace_back(bf16);
      plain_log.watch(std::to_string(i) + ".", *plain.back());
    }
    torch::manual_seed(11);
    for (int i = 0; i < blocks; ++i) {
      groups.push_back(offload.add_group("h." + std::to_string(i), [this, bf16, i] {
        Dropping block(bf16);
        offload_log.watch(std::to_string(i) + ".", *block);
        return block;
      }));
      if (repeated) offload.engine().expect_repeated_gradients(groups.back().id());
    }
    offload.freeze();
  }
  torch::Tensor plain_forward(torch::Tensor x) {
    torch::manual_seed(21);
    for (auto& block : plain) x = block(x);
    return x;
  }
  torch::Tensor checkpointed(torch::Tensor x) {
    torch::manual_seed(21);
    for (auto& group : groups) {
      x = offload.checkpoint(group, x);
      EXPECT_TRUE(all_parked(*group.module()));
    }
    return x;
  }
  void expect_equal_gradients() {
    ASSERT_EQ(plain_log.all().size(), 12 * groups.size());
    for (const auto& [name, gradients] : plain_log.all()) {
      ASSERT_EQ(gradients.size(), 1u) << name;
      ASSERT_EQ(offload_log.of(name).size(), 1u) << name;
      EXPECT_TRUE(same_bits(gradients[0], offload_log.of(name)[0])) << name;
    }
    expect_all_parked();
  }
  void expect_all_parked() {
    for (auto& group : groups) EXPECT_TRUE(all_parked(*group.module())) << group.name();
  }

  std::vector<Dropping> plain;
  GradientLog plain_log, offload_log;
  Offload offload;
  std::vector<Group<DroppingImpl>> groups;
};

torch::Tensor input(bool bf16 = false) {
  torch::manual_seed(5);
  return torch::randn({2, 6, kHidden}).to(bf16 ? torch::kBFloat16 : torch::kFloat);
}

class CheckpointTypes : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Types, CheckpointTypes, testing::Bool(),
                         [](const auto& info) { return info.param ? "Bf16" : "F32"; });

// No input requires a gradient: the parameters receive theirs all the same.
TEST_P(CheckpointTypes, GradientsOfATransformerWithDropoutAreThePlainOnes) {
  Pair pair(3, GetParam());
  const torch::Tensor expected = pair.plain_forward(input(GetParam()));
  const torch::Tensor next_plain = torch::randn({4});
  const torch::Tensor output = pair.checkpointed(input(GetParam()));
  EXPECT_TRUE(same_bits(expected, output));
  EXPECT_TRUE(same_bits(next_plain, torch::randn({4})));
  expected.square().sum().backward();
  torch::manual_seed(31);
  output.square().sum().backward();
  const torch::Tensor after = torch::randn({4});
  torch::manual_seed(31);
  EXPECT_TRUE(same_bits(after, torch::randn({4}))) << "backward leaves the generator alone";
  pair.expect_equal_gradients();
}

TEST_P(CheckpointTypes, InputsThatRequireAGradientReceiveThePlainOne) {
  Pair pair(2, GetParam());
  torch::Tensor a = input(GetParam()).requires_grad_(), b = a.detach().clone().requires_grad_();
  pair.plain_forward(a).square().sum().backward();
  pair.checkpointed(b).square().sum().backward();
  EXPECT_TRUE(same_bits(a.grad(), b.grad()));
  pair.expect_equal_gradients();
}

TEST(Checkpoint, MixesWithBlocksThatAreNotCheckpointed) {
  Pair pair(3);
  const torch::Tensor expected = pair.plain_forward(input());
  torch::Tensor x = input();
  torch::manual_seed(21);
  x = pair.offload(pair.groups[0], x);
  x = pair.offload.checkpoint(pair.groups[1], x);
  x = pair.offload(pair.groups[2], x);
  EXPECT_TRUE(same_bits(expected, x));
  expected.sum().backward();
  x.sum().backward();
  pair.expect_equal_gradients();
}

TEST(Checkpoint, KeepsOneGroupInMemoryAtATime) {
  const headrace_test::SwapFolder folder;
  headrace::Settings settings = headrace_test::all_on_nvme(folder.path());
  settings.prefetch_groups = 0;
  Pair pair(4, false, settings);
  pair.plain_forward(input()).square().sum().backward();
  pair.checkpointed(input()).square().sum().backward();
  pair.expect_equal_gradients();
}

TEST(Checkpoint, RunsTheBlockAgainInBackwardAndOnlyThere) {
  Pair pair(1);
  const auto module = pair.groups[0].module();
  const torch::Tensor output = pair.checkpointed(input());
  EXPECT_EQ(module->runs, 1);
  output.sum().backward();
  EXPECT_EQ(module->runs, 2);
}

TEST(Checkpoint, TakesAFunctionOfAnySignature) {
  using headrace_test::Mlp;
  torch::manual_seed(1);
  Mlp plain(4, 4, 4);
  torch::manual_seed(1);
  Mlp mlp(4, 4, 4);
  GradientLog log;
  log.watch("", *mlp);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  using Named = std::map<std::string, torch::Tensor>;
  const auto block = [](Mlp module, const torch::Tensor& x,
                        const std::optional<torch::Tensor>& mask,
                        const std::vector<torch::Tensor>& more, double factor) {
    torch::Tensor inner = module->first(x) * factor;
    if (mask) inner = inner * *mask;
    const torch::Tensor outer = module->second(inner + more[0] * more[1]);
    return std::make_tuple(outer, Named{{"inner", inner}, {"count", torch::tensor(3)}},
                           std::optional<torch::Tensor>(), torch::Tensor(), 7);
  };
  const torch::Tensor x = torch::randn({2, 4}), mask = torch::tensor({1.f, 0.f, 1.f, 1.f});
  const auto leaves = [] {
    torch::manual_seed(9);
    return std::vector<torch::Tensor>{torch::randn({2, 4}).requires_grad_(),
                                      torch::randn({2, 4}).requires_grad_()};
  };
  const auto mine = leaves(), theirs = leaves();
  const auto loss = [](const auto& result) {
    EXPECT_EQ(std::get<1>(result).at("count").template item<int>(), 3);
    EXPECT_FALSE(std::get<2>(result).has_value());
    EXPECT_FALSE(std::get<3>(result).defined());
    EXPECT_EQ(std::get<4>(result), 7);
    return std::get<0>(result).square().sum() + std::get<1>(result).at("inner").sum();
  };
  const auto own = std::make_optional(mask);
  const auto output = offload.checkpoint(
      group, [&, mlp](auto&... given) { return block(mlp, given...); }, x, own, mine, 0.5);
  EXPECT_FALSE(std::get<1>(output).at("count").requires_grad());
  loss(output).backward();
  loss(block(plain, x, own, theirs, 0.5)).backward();
  for (std::size_t i = 0; i < mine.size(); ++i)
    EXPECT_TRUE(same_bits(mine[i].grad(), theirs[i].grad())) << i;
  for (const auto& item : plain->named_parameters())
    EXPECT_TRUE(same_bits(item.value().grad(), log.of(item.key())[0])) << item.key();
}

TEST(Checkpoint, MayReturnAnInputAndTheSameTensorTwice) {
  Pair pair(1);
  torch::Tensor a = input().requires_grad_(), b = a.detach().clone().requires_grad_();
  const auto twice = [](Dropping block, const torch::Tensor& x) {
    const torch::Tensor y = block(x);
    return std::make_tuple(x, y, y);
  };
  const auto loss = [](const auto& r) {
    return (std::get<0>(r) * 2 + std::get<1>(r).square() + std::get<2>(r)).sum();
  };
  torch::manual_seed(21);
  loss(twice(pair.plain[0], a)).backward();
  torch::manual_seed(21);
  const Dropping own(pair.groups[0].module());
  loss(pair.offload.checkpoint(
           pair.groups[0], [&](const torch::Tensor& x) { return twice(own, x); }, b))
      .backward();
  EXPECT_TRUE(same_bits(a.grad(), b.grad()));
  pair.expect_equal_gradients();
}

// Autograd must not take the parameter for a tensor that the checkpoint made.
TEST(Checkpoint, MayReturnAParameter) {
  Pair pair(1);
  const auto module = pair.groups[0].module();
  const auto output = pair.offload.checkpoint(
      pair.groups[0],
      [module](const torch::Tensor& x) {
        return std::make_pair(module->forward(x), module->block->qkv->weight);
      },
      input());
  EXPECT_TRUE(module->block->qkv->weight.is_leaf());
  EXPECT_TRUE(output.second.requires_grad());
  output.first.sum().backward();
  EXPECT_EQ(pair.offload.step({}).parameters_updated, 12u);
}

TEST(Checkpoint, WithoutGradientsIsAPlainCall) {
  Pair pair(2);
  torch::NoGradGuard no_grad;
  const torch::Tensor output = pair.checkpointed(input());
  EXPECT_TRUE(same_bits(output, pair.plain_forward(input())));
  EXPECT_FALSE(output.requires_grad());
}

TEST(Checkpoint, InsideACheckpointGivesThePlainGradients) {
  Pair pair(3);
  const torch::Tensor expected = pair.plain_forward(input());
  const torch::Tensor x = input();
  torch::manual_seed(21);
  const torch::Tensor output = pair.offload.checkpoint(
      pair.groups[0],
      [&](const torch::Tensor& x) {
        const torch::Tensor first = pair.groups[0].module()->forward(x);
        const torch::Tensor second = pair.offload.checkpoint(pair.groups[1], first);
        return pair.offload(pair.groups[2], second);
      },
      x);
  EXPECT_TRUE(same_bits(expected, output));
  expected.square().sum().backward();
  output.square().sum().backward();
  pair.expect_equal_gradients();
}

// Each call has a gradient of its own, and the engine sums them in f32.
TEST(Checkpoint, OfAGroupThatIsCalledTwiceNeedsToExpectSeveralGradients) {
  const auto twice = [](Pair& pair) {
    torch::manual_seed(21);
    const torch::Tensor x = pair.offload.checkpoint(pair.groups[0], input());
    return pair.offload.checkpoint(pair.groups[0], x).square().sum();
  };
  Pair undeclared(1);
  expect_error([&] { twice(undeclared).backward(); }, Code::kWrongState, {"'h.0.", "expect"});
  undeclared.expect_all_parked();

  Pair pair(1, false, {}, /*repeated=*/true);
  twice(pair).backward();
  pair.expect_all_parked();
  torch::manual_seed(21);
  pair.plain[0](pair.plain[0](input())).square().sum().backward();
  for (const auto& [name, gradients] : pair.plain_log.all()) {
    const auto& arrived = pair.offload_log.of(name);
    ASSERT_EQ(arrived.size(), 2u) << name;
    // torch summed the same two, perhaps the other way round: addition of two is exact in either.
    EXPECT_TRUE(same_bits(gradients[0], arrived[0] + arrived[1])) << name;
  }
  EXPECT_EQ(pair.offload.step({}).parameters_updated, 12u);
}

TEST(Checkpoint, OverARetainedGraphRunsAgainEachTime) {
  Pair pair(2, false, {}, /*repeated=*/true);
  const torch::Tensor loss = pair.checkpointed(input()).square().sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  for (const auto& [name, gradients] : pair.offload_log.all()) {
    ASSERT_EQ(gradients.size(), 2u) << name;
    EXPECT_TRUE(same_bits(gradients[0], gradients[1])) << name;
  }
  EXPECT_THROW(loss.backward(), c10::Error) << "torch has freed the graph";
  pair.expect_all_parked();
}

TEST(Checkpoint, AnExceptionInForwardAndInTheSecondRunParksAndTheNextStepWorks) {
  for (const int run : {1, 2}) {
    Pair pair(2);
    pair.groups[0].module()->fail_at = run;
    EXPECT_THROW(pair.checkpointed(input()).sum().backward(), std::runtime_error) << run;
    pair.expect_all_parked();
    pair.offload.discard_gradients();
    pair.groups[0].module()->fail_at = -1;
    for (const auto& [name, gradients] : pair.offload_log.all()) {
      EXPECT_LE(gradients.size(), 1u) << name;
    }
    const std::size_t before = pair.offload_log.of("0.block.qkv.weight").size();
    EXPECT_EQ(before, 0u) << "the first block failed before its gradients";
    pair.checkpointed(input()).sum().backward();
    EXPECT_EQ(pair.offload.step({}).parameters_updated, 24u);
    pair.expect_all_parked();
  }
}

TEST(Checkpoint, RunsAgainUnderTheAutocastOfForward) {
  struct Autocast {
    explicit Autocast(bool enabled) { at::autocast::set_autocast_enabled(at::kCPU, enabled); }
    ~Autocast() {
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
    }
  };
  using headrace_test::Mlp;
  torch::manual_seed(1);
  Mlp plain(4, 4, 4);
  torch::manual_seed(1);
  Mlp mlp(4, 4, 4);
  GradientLog log;
  log.watch("", *mlp);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("mlp", mlp);
  offload.freeze();
  const torch::Tensor x = torch::randn({3, 4});
  torch::Tensor mine, theirs;
  {
    const Autocast autocast(true);
    mine = offload.checkpoint(group, x);
    theirs = plain(x);
  }
  EXPECT_EQ(mine.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(same_bits(mine, theirs));
  mine.square().sum().backward();
  theirs.square().sum().backward();
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  for (const auto& item : plain->named_parameters())
    EXPECT_TRUE(same_bits(item.value().grad(), log.of(item.key())[0])) << item.key();
}

// Autocast keeps weights that it has cast: those cast in the first run know of no gradients.
TEST(Checkpoint, UnderAutocastLeavesNoCastWeightsToOthers) {
  using headrace_test::Mlp;
  Mlp mlp(4, 4, 4);
  GradientLog log;
  log.watch("", *mlp);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("mlp", mlp);
  offload.engine().expect_repeated_gradients(group.id());
  offload.freeze();
  const torch::Tensor x = torch::randn({3, 4});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const torch::Tensor first = offload.checkpoint(group, x), second = offload(group, x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  first.sum().backward();
  second.sum().backward();
  for (const auto& [name, gradients] : log.all()) EXPECT_EQ(gradients.size(), 2u) << name;
  EXPECT_EQ(log.all().size(), 4u);
}

TEST(Checkpoint, OfABlockThatTrainsNothingLeavesNothingBehind) {
  Pair pair(2);
  for (auto parameter : pair.groups[0].module()->parameters()) parameter.set_requires_grad(false);
  pair.checkpointed(input()).sum().backward();
  pair.expect_all_parked();
  EXPECT_EQ(pair.offload.step({}).parameters_updated, 12u);
}

TEST(Checkpoint, WhatItCannotDoIsRefusedByName) {
  Pair pair(1, false, {}, /*repeated=*/true);
  torch::Tensor x = input().requires_grad_();
  expect_error(
      [&] {
        pair.checkpointed(x).square().sum().backward({}, /*retain_graph=*/true,
                                                     /*create_graph=*/true);
      },
      Code::kUnsupported, {"create_graph", "group 'h.0'", "offload(group"});
  expect_error([&] { torch::autograd::grad({pair.checkpointed(x).sum()}, {x}); },
               Code::kUnsupported, {"chosen inputs", "group 'h.0'"});
  const torch::Tensor before = pair.checkpointed(x).sum();
  pair.checkpointed(x).sum().backward();
  pair.offload.step({});
  expect_error([&] { before.backward(); }, Code::kWrongState, {"group 'h.0'", "step()"});
  const torch::Tensor late = pair.checkpointed(x).sum();
  pair.offload.close();
  expect_error([&] { late.backward(); }, Code::kWrongState, {"group 'h.0'", "close()"});
}

TEST(Checkpoint, ABlockThatDoesSomethingElseTheSecondTimeIsRefusedByName) {
  Pair pair(1);
  int runs = 0;
  const torch::Tensor x = input();
  const auto output = pair.offload.checkpoint(
      pair.groups[0],
      [&](const torch::Tensor& given) {
        std::vector<torch::Tensor> all{pair.groups[0].module()->forward(given)};
        if (++runs == 1) all.push_back(all[0] * 2);
        return all;
      },
      x);
  expect_error([&] { output[0].sum().backward(); }, Code::kWrongState,
               {"group 'h.0'", "1 tensors in backward and 2 in forward"});
  pair.expect_all_parked();
}
}  // namespace
