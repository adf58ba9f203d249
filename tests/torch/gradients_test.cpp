// SPDX-License-Identifier: Apache-2.0
// Once the engine has a gradient, whoever looks for it in .grad() is told so; torch's own use of
// .grad() goes on as before.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/refusals.hpp"

namespace {
using headrace::Code;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::expect_error;
using headrace_test::expect_torch_error;
using headrace_test::GradientLog;
using headrace_test::Mlp;
using headrace_test::MlpImpl;
using headrace_test::parked;
using headrace_test::same_bits;

headrace::Settings accumulating() {
  headrace::Settings settings;
  settings.gradient_accumulation_steps = 2;
  return settings;
}

// A block, and a weight that is bound all the time.
struct Trainer {
  explicit Trainer(headrace::Settings settings = {}) : offload(std::move(settings)) {
    torch::manual_seed(2);
    mlp = Mlp(4, 4, 4);
    scale = torch::ones({4}).requires_grad_();
    log.watch("", *mlp);
    group.emplace(offload.add_group("mlp", mlp));
    offload.add_rest({{"scale", scale}});
    offload.freeze();
  }
  torch::Tensor loss() { return (offload(*group, torch::ones({2, 4})) * scale).square().sum(); }

  Offload offload;
  Mlp mlp{nullptr};
  torch::Tensor scale;
  GradientLog log;
  std::optional<Group<MlpImpl>> group;
};

struct Search {
  const char* name;
  std::function<void(Trainer& trainer)> search;
};
void PrintTo(const Search& search, std::ostream* out) { *out << search.name; }

const Search kSearches[] = {
    {"clip_grad_norm",
     [](Trainer& t) { torch::nn::utils::clip_grad_norm_(t.mlp->parameters(), 1.0); }},
    {"clip_grad_norm_infinity",
     [](Trainer& t) {
       torch::nn::utils::clip_grad_norm_(t.mlp->parameters(), 1.0,
                                         std::numeric_limits<double>::infinity());
     }},
    {"clip_grad_value",
     [](Trainer& t) { torch::nn::utils::clip_grad_value_(t.mlp->parameters(), 1.0); }},
    {"adamw_on_what_is_bound",
     [](Trainer& t) {
       const auto scope = t.offload.gathered(*t.group);
       torch::optim::AdamW(t.mlp->parameters(), torch::optim::AdamWOptions().weight_decay(0))
           .step();
     }},
    {"norm", [](Trainer& t) { t.mlp->first->weight.grad().norm(); }},
    {"scaling", [](Trainer& t) { t.mlp->first->weight.mutable_grad().mul_(0.5); }},
    {"foreach", [](Trainer& t) { at::_foreach_norm({t.mlp->first->weight.grad()}); }},
    {"copy", [](Trainer& t) { t.mlp->first->weight.grad().clone(); }},
    {"zero_in_place", [](Trainer& t) { t.mlp->zero_grad(/*set_to_none=*/false); }},
};

class GradientSearch : public testing::TestWithParam<Search> {};

TEST_P(GradientSearch, ThrowsNamingTheParameterAndWhatToCall) {
  Trainer trainer;
  trainer.loss().backward();
  expect_torch_error([&] { GetParam().search(trainer); },
                     {"'mlp.first.weight'", "group 'mlp'", "max_norm", "offload.step("});
  EXPECT_EQ(trainer.offload.step({}).parameters_updated, 5u) << "nothing was lost by it";
}
INSTANTIATE_TEST_SUITE_P(Every, GradientSearch, testing::ValuesIn(kSearches),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Gradients, OfAParameterThatIsAlwaysBoundAreGuardedToo) {
  Trainer trainer;
  trainer.loss().backward();
  expect_torch_error([&] { torch::nn::utils::clip_grad_norm_({trainer.scale}, 1.0); },
                     {"'rest.scale'", "max_norm"});
}

TEST(Gradients, AreLookedForInVainAfterAStepAndAfterDiscarding) {
  Trainer trainer;
  trainer.loss().backward();
  trainer.offload.step({});
  EXPECT_FALSE(trainer.mlp->first->weight.grad().defined());
  trainer.loss().backward();
  EXPECT_TRUE(trainer.mlp->first->weight.grad().defined());
  trainer.offload.discard_gradients();
  EXPECT_FALSE(trainer.mlp->first->weight.grad().defined());
}

TEST(Gradients, ZeroGradMayBeCalledAndChangesNothing) {
  Trainer zeroed, other;
  for (int step = 0; step < 3; ++step) {
    zeroed.mlp->zero_grad();
    zeroed.loss().backward();
    zeroed.offload.step({});
    other.loss().backward();
    other.offload.step({});
  }
  EXPECT_EQ(zeroed.offload.engine().hash_parameters(), other.offload.engine().hash_parameters());
}

TEST(Gradients, ThatZeroGradWasToDropAreNotTrainedOn) {
  Trainer dropped(accumulating()), clean(accumulating());
  dropped.loss().backward();
  dropped.mlp->zero_grad();
  const std::vector<std::string> parts{"'mlp.first.weight'", "zero_grad()", "discard_gradients()"};
  expect_error([&] { dropped.offload.step({}); }, Code::kWrongState, parts);
  expect_error([&] { dropped.loss().backward(); }, Code::kWrongState, {"zero_grad()"});
  dropped.offload.discard_gradients();
  for (Trainer* trainer : {&dropped, &clean}) {
    for (int i = 0; i < 2; ++i) trainer->loss().backward();
    trainer->offload.step({});
  }
  EXPECT_EQ(dropped.offload.engine().hash_parameters(), clean.offload.engine().hash_parameters());
}

TEST(Gradients, OfABackwardPassThatAnExceptionEndedAreNotTrainedOn) {
  Trainer broken(accumulating()), clean(accumulating());
  for (Trainer* trainer : {&broken, &clean}) trainer->loss().backward();
  {
    const torch::Tensor input = torch::ones({2, 4}).requires_grad_();
    input.register_hook([](const torch::Tensor&) { throw std::runtime_error("late in backward"); });
    EXPECT_THROW((broken.offload(*broken.group, input) * broken.scale).sum().backward(),
                 std::runtime_error);
  }
  const std::vector<std::string> parts{"of its gradients", "discard_gradients()"};
  expect_error([&] { broken.offload.step({}); }, Code::kWrongState, parts);
  const torch::Tensor loss = broken.loss();
  expect_error([&] { loss.backward(); }, Code::kWrongState, parts);
  broken.offload.discard_gradients();
  clean.offload.discard_gradients();
  for (Trainer* trainer : {&broken, &clean}) {
    for (int i = 0; i < 2; ++i) trainer->loss().backward();
    trainer->offload.step({});
  }
  EXPECT_EQ(broken.offload.engine().hash_parameters(), clean.offload.engine().hash_parameters());
}

TEST(Gradients, AreWholeWhereTheExceptionCameBeforeAnyArrived) {
  Trainer trainer;
  torch::Tensor output = trainer.offload(*trainer.group, torch::ones({2, 4}));
  output.register_hook([](const torch::Tensor&) { throw std::runtime_error("early"); });
  EXPECT_THROW(output.sum().backward(), std::runtime_error);
  trainer.loss().backward();
  EXPECT_EQ(trainer.offload.step({}).parameters_updated, 5u);
}

// torch adds to what is in .grad(), and what the log sees is what it wrote there.
TEST(Gradients, OfASecondMicroBatchStandAlone) {
  Trainer trainer(accumulating());
  for (int i = 0; i < 2; ++i) trainer.loss().backward();
  const auto& seen = trainer.log.of("first.weight");
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_TRUE(same_bits(seen[0], seen[1]));
  EXPECT_TRUE(parked(trainer.mlp->first->weight.grad()));
}

TEST(Gradients, OfTheUsersOwnAreAddedToAsTorchDoes) {
  Trainer trainer;
  trainer.mlp->first->weight.mutable_grad() = torch::full({4, 4}, 100.0f);
  trainer.loss().backward();
  EXPECT_GT(trainer.log.of("first.weight")[0].max().item<float>(), 50);
  EXPECT_TRUE(parked(trainer.mlp->first->weight.grad()));
  trainer.offload.step({});
  trainer.mlp->first->weight.mutable_grad() = torch::ones({4, 4});
  trainer.offload.step({});
  EXPECT_TRUE(same_bits(trainer.mlp->first->weight.grad(), torch::ones({4, 4})))
      << "a step drops only what is ours";
}

TEST(Gradients, HooksThatTheUserRegistersLaterLeaveOursInPlace) {
  Trainer trainer(accumulating());
  int calls = 0;
  trainer.loss().backward();
  trainer.mlp->first->weight.register_hook([&](const torch::Tensor&) { ++calls; });
  trainer.loss().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(trainer.log.of("first.weight").size(), 2u);
}

TEST(Gradients, OfAParameterThawedAfterFreezeArriveAgainAndAgain) {
  Mlp mlp(4, 4, 4);
  mlp->first->weight.set_requires_grad(false);
  Offload offload(accumulating());
  const auto group = offload.add_group("mlp", mlp);
  offload.expect_gradients(group);
  offload.freeze();
  mlp->first->weight.set_requires_grad(true);
  for (int i = 0; i < 2; ++i) offload(group, torch::ones({2, 4})).sum().backward();
  EXPECT_TRUE(parked(mlp->first->weight.grad()));
  EXPECT_EQ(offload.step({}).parameters_updated, 4u);
}

// autograd::grad hands a gradient to its caller and leaves .grad() as it is.
TEST(Gradients, AskedForDirectlyAreGivenAndTheGuardStays) {
  Trainer trainer;
  trainer.loss().backward();
  const torch::Tensor again = trainer.loss();
  const auto asked = torch::autograd::grad({again}, {trainer.mlp->first->weight});
  EXPECT_TRUE(same_bits(asked[0], trainer.log.of("first.weight")[0]));
  EXPECT_TRUE(parked(trainer.mlp->first->weight.grad()));
}

TEST(Gradients, UndefinedOnesLeaveTheGuard) {
  struct Nothing : torch::autograd::Function<Nothing> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
      return x.clone();
    }
    static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext*,
                                               const std::vector<torch::Tensor>&) {
      return {torch::Tensor()};
    }
  };
  Trainer trainer(accumulating());
  trainer.loss().backward();
  Nothing::apply(trainer.scale).sum().backward();
  EXPECT_TRUE(parked(trainer.scale.grad()));
}

TEST(Gradients, WithAGraphOfTheirOwnAreTaken) {
  Trainer trainer(accumulating());
  for (int i = 0; i < 2; ++i)
    trainer.loss().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_TRUE(parked(trainer.mlp->first->weight.grad()));
  EXPECT_TRUE(same_bits(trainer.log.of("first.weight")[0], trainer.log.of("first.weight")[1]));
  EXPECT_EQ(trainer.offload.step({}).parameters_updated, 5u);
}

TEST(Gradients, ThatWereRefusedDoNotHideThoseThatWereTaken) {
  Trainer trainer;
  trainer.loss().backward();
  expect_error([&] { trainer.loss().backward(); }, Code::kWrongState, {"arriv"});
  EXPECT_TRUE(parked(trainer.scale.grad()));
  EXPECT_EQ(trainer.offload.step({}).parameters_updated, 5u);
}

TEST(Gradients, AreTorchsAgainOnceTheOffloadIsClosed) {
  Trainer trainer;
  trainer.loss().backward();
  trainer.offload.close();
  EXPECT_FALSE(trainer.scale.grad().defined());
  trainer.scale.set_data(torch::ones({4}));
  for (int i = 0; i < 2; ++i) (trainer.scale * 2).sum().backward();
  EXPECT_TRUE(same_bits(trainer.scale.grad(), torch::full({4}, 4.0f)));
}
}  // namespace
