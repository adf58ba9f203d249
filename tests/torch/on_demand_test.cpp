// SPDX-License-Identifier: Apache-2.0
// Which operators bring a parked parameter, for how long, how often that is counted, and when
// torch's callback is there.
#include "headrace/torch/on_demand.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/refusals.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Code;
using headrace::Settings;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::expect_thrown;
using headrace_test::Mlp;
using headrace_test::MlpImpl;
using headrace_test::same_bits;
using headrace_test::SwapFolder;
using torch::Tensor;

// Three groups on NVMe, and buffers for as many as is said.
struct Three {
  explicit Three(std::uint32_t buffers) : offload(settings(buffers)) {
    offload.serve_on_demand();
    for (int i = 0; i < 3; ++i) {
      torch::manual_seed(i);
      mlps.emplace_back(4, 4, 4);
      values.push_back(mlps.back()->first->weight.detach().clone());
      groups.push_back(offload.add_group("mlp." + std::to_string(i), mlps.back()));
    }
    offload.freeze();
  }
  Settings settings(std::uint32_t buffers) const {
    Settings settings = headrace_test::all_on_nvme(folder.path());
    settings.prefetch_groups = buffers - 1;
    return settings;
  }
  const Tensor& weight(std::size_t i) const { return mlps[i]->first->weight; }
  bool bound(std::size_t i) const { return !headrace_test::parked(weight(i)); }
  std::uint64_t binds(std::size_t i) const {
    for (const auto& served : offload.served_on_demand()) {
      if (served.group == groups[i].id()) return served.binds;
    }
    return 0;
  }
  SwapFolder folder;
  Offload offload;
  std::vector<Mlp> mlps;
  std::vector<Tensor> values;
  std::vector<Group<MlpImpl>> groups;
};

// Runs `hook` in a backward pass.
void in_backward(const std::function<void()>& hook) {
  const Tensor x = torch::ones({2}).requires_grad_(), y = x * 2;
  y.register_hook([&](const Tensor&) { hook(); });
  y.sum().backward();
}

TEST(ServeOnDemand, BindsForTheOperatorThatTouchesAndCountsIt) {
  Three m(2);
  EXPECT_TRUE(m.offload.served_on_demand().empty());
  EXPECT_TRUE(same_bits(m.weight(0) * 1, m.values[0]));
  EXPECT_FALSE(m.bound(0));
  EXPECT_TRUE(same_bits(m.weight(0).clone(), m.values[0]));
  const auto served = m.offload.served_on_demand();
  ASSERT_EQ(served.size(), 1u);
  EXPECT_EQ(served[0].name, "mlp.0");
  EXPECT_EQ(served[0].binds, 2u);
}

TEST(ServeOnDemand, BindsUntilTheEndOfTheBackwardPassThatTouches) {
  Three m(2);
  in_backward([&] {
    EXPECT_TRUE(same_bits(m.weight(0) * 1, m.values[0]));
    EXPECT_TRUE(m.bound(0));
    EXPECT_TRUE(same_bits(m.weight(0).clone(), m.values[0]));
  });
  EXPECT_FALSE(m.bound(0));
  EXPECT_EQ(m.binds(0), 1u) << "one bind, of two touches";
}

TEST(ServeOnDemand, LeavesScopesThatChangeValuesAsTheyAre) {
  Three m(2);
  {
    const auto whole = m.offload.gathered(m.groups[1], headrace::torch::Access::kModify);
    const torch::NoGradGuard no_gradients;
    m.weight(1).add_(1);
  }
  EXPECT_TRUE(same_bits(m.weight(1) * 1, m.values[1] + 1));
  EXPECT_EQ(m.binds(1), 1u) << "the scope is none";
}

// What is read is parked again before anybody can write where the engine would not see it.
TEST(ServeOnDemand, RefusesWritesBehindItsBackAfterARead) {
  Three m(2);
  const std::string before = m.offload.engine().hash_parameters();
  m.weight(1).sum();
  for (const std::function<void()>& write : std::vector<std::function<void()>>{
           [&] { std::memset(m.weight(1).data_ptr(), 0, 4); }, [&] { m.weight(1).data().zero_(); },
           [&] { m.weight(1).accessor<float, 2>(); }}) {
    expect_thrown(write, {"group 'mlp.1'"});
  }
  EXPECT_TRUE(same_bits(m.weight(1).clone(), m.values[1]));
  EXPECT_EQ(m.offload.engine().hash_parameters(), before);
}

TEST(ServeOnDemand, SeesViewsListsAndOptionalTensors) {
  Three m(2);
  const auto& [a, b] = std::tie(m.mlps[0], m.mlps[1]);
  EXPECT_TRUE(same_bits(m.weight(0).detach().t().select(0, 1).clone(), m.values[0].t()[1]));
  EXPECT_TRUE(same_bits(torch::cat({m.weight(0).flatten(), m.weight(1).flatten()}),
                        torch::cat({m.values[0].flatten(), m.values[1].flatten()})));
  torch::layer_norm(torch::ones({2, 4}), {4}, a->first->bias, b->first->bias);
  torch::linear(torch::ones({2, 4}), torch::ones({4, 4}), a->second->bias);
  EXPECT_EQ(m.binds(0), 4u);
  EXPECT_EQ(m.binds(1), 2u);
  const Tensor rows = torch::tensor({1, 2});
  EXPECT_TRUE(same_bits(m.weight(2).index({torch::indexing::Slice(), rows}),
                        m.values[2].index({torch::indexing::Slice(), rows})));
  std::ostringstream out;
  out << m.weight(2);
}

TEST(ServeOnDemand, BringsNothingForOperatorsThatNeedNoValues) {
  Three m(2);
  const Tensor view = m.weight(0).detach().reshape({2, 8}).t().unsqueeze(0).expand({3, 8, 2});
  EXPECT_EQ(view.sizes(), (std::vector<std::int64_t>{3, 8, 2}));
  torch::zeros_like(m.weight(0));
  m.weight(0).new_empty({3});
  m.weight(0).contiguous();  // it is
  EXPECT_TRUE(m.offload.served_on_demand().empty());
}

TEST(ServeOnDemand, RefusesWritesAndWhatIsNoOperatorByName) {
  Three m(2);
  torch::NoGradGuard no_grad;
  std::ostringstream file;
  for (const std::function<void()>& touch : std::vector<std::function<void()>>{
           [&] { m.weight(1).mul_(2); },
           [&] {
             m.weight(1).copy_(torch::ones({4, 4}));
           },
           [&] { torch::nn::init::normal_(m.weight(1)); },
           [&] { torch::add_out(m.mlps[1]->first->weight, m.weight(1), m.weight(2)); },
           [&] { torch::save(m.mlps[1], file); }, [&] { m.weight(1).data_ptr<float>(); }}) {
    const std::string text = expect_thrown(touch, {"group 'mlp.1'", "offload.gathered("});
    EXPECT_FALSE(m.bound(1)) << text;
    EXPECT_EQ(text.find("after offload.serve_on_demand()"), std::string::npos) << text;
  }
}

TEST(ServeOnDemand, FindsAWriteWhileABackwardPassHasAGroupBound) {
  Three m(2);
  in_backward([&] {
    m.weight(1).sum();
    torch::NoGradGuard no_grad;
    m.weight(1).mul_(2);
  });
  expect_thrown(
      [&] {
        m.offload(m.groups[0], torch::ones({2, 4}));
      },
      {"'mlp.1.first.weight'", "written"});
}

TEST(ServeOnDemand, LetsGoOfWhatWasBoundForLongestWhereMemoryIsOut) {
  Three m(2);
  in_backward([&] {
    for (std::size_t i = 0; i < 3; ++i) m.weight(i).sum();
    EXPECT_FALSE(m.bound(0));
    EXPECT_TRUE(m.bound(1) && m.bound(2));
  });
}

TEST(ServeOnDemand, NeverLetsGoOfAGroupThatTheSameOperatorUses) {
  Three m(2);
  in_backward([&] {
    m.weight(0).sum();
    m.weight(2).sum();
    EXPECT_TRUE(same_bits(m.weight(0) + m.weight(1), m.values[0] + m.values[1]))
        << "0 was the oldest";
    EXPECT_TRUE(m.bound(0) && m.bound(1));
    EXPECT_FALSE(m.bound(2));
    EXPECT_TRUE(same_bits(m.weight(2) + m.weight(0), m.values[2] + m.values[0]))
        << "nor one that comes later in its arguments";
    EXPECT_TRUE(m.bound(0) && m.bound(2));
    EXPECT_FALSE(m.bound(1));
  });
}

TEST(ServeOnDemand, SaysWhyWhereThereIsNoMemoryToBindIn) {
  Three m(1);
  EXPECT_TRUE(same_bits(m.weight(0).clone(), m.values[0]));
  expect_thrown(
      [&] { m.weight(1).add(m.weight(2)); },
      {"group 'mlp.2'", "gather slots are leased, by 'mlp.1'", "headrace.prefetch_groups"});
  EXPECT_TRUE(same_bits(m.weight(2).clone(), m.values[2])) << "and it is served when there is";
}

TEST(ServeOnDemand, DoesNotHinderLoadAndStoreOfTheEngine) {
  Three m(2);
  m.weight(0).sum();
  m.offload.engine().load(m.groups[0].id(), [](headrace::ParameterId, std::span<std::byte> values) {
    std::fill(values.begin(), values.end(), std::byte{0});
  });
  EXPECT_EQ(m.weight(0).abs().sum().item<float>(), 0);
}

TEST(ServeOnDemand, WorksInThreadsThatTouchDifferentGroups) {
  Three m(3);
  std::vector<std::thread> threads;
  std::vector<int> wrong(3);
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t k = 0; k < 200; ++k) {
        const std::size_t other = (i + k) % 3;
        const Tensor sum = torch::cat({m.weight(i).detach(), m.weight(other).detach()});
        wrong[i] += same_bits(sum, torch::cat({m.values[i], m.values[other]})) ? 0 : 1;
        if (i == 0 && k % 8 == 0) m.offload.engine();  // lets go meanwhile
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(3, 0));
}

TEST(ServeOnDemand, KeepsTheCallbackFromTheFirstFreezeToTheLastClose) {
  ASSERT_FALSE(at::hasGlobalCallbacks());
  std::optional<Offload> a(std::in_place, Settings{}), b(std::in_place, Settings{});
  Mlp x(4, 4, 4), y(4, 4, 4), z(4, 4, 4);
  const auto in_a = a->add_group("x", x);
  b->add_group("y", y);
  a->serve_on_demand();
  b->serve_on_demand();
  EXPECT_FALSE(at::hasGlobalCallbacks());
  a->freeze();
  b->freeze();
  EXPECT_TRUE(at::hasGlobalCallbacks());
  Offload moved = std::move(*a);
  a.reset();
  x->first->weight.add(y->first->weight);
  EXPECT_EQ(moved.served_on_demand().size() + b->served_on_demand().size(), 2u);
  b.reset();
  EXPECT_TRUE(at::hasGlobalCallbacks());
  expect_thrown([&] { y->first->weight.sum(); }, {"closed"});
  x->first->bias.sum();
  moved.close();
  EXPECT_FALSE(at::hasGlobalCallbacks());
  expect_thrown([&] { x->first->weight.sum(); }, {"closed"});
  Offload without((Settings()));
  without.add_group("z", z);
  without.freeze();
  EXPECT_FALSE(at::hasGlobalCallbacks()) << "nobody asked for it";
}

TEST(ServeOnDemand, MayBeginAndEndWhileOtherThreadsRunOperators) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) torch::ones({4}).add(torch::ones({4})).sum();
  });
  for (int i = 0; i < 30; ++i) {
    Mlp mlp(4, 4, 4);
    const Tensor before = mlp->first->weight.detach().clone();
    Offload offload((Settings()));
    offload.add_group("mlp", mlp);
    offload.serve_on_demand();
    offload.freeze();
    EXPECT_TRUE(same_bits(mlp->first->weight.clone(), before));
  }
  stop = true;
  other.join();
  EXPECT_FALSE(at::hasGlobalCallbacks());
}

TEST(ServeOnDemand, IsRefusedAfterFreezeAndWhereTorchTellsNothing) {
  Offload offload((Settings()));
  Mlp mlp(4, 4, 4);
  offload.add_group("mlp", mlp);
  {
    const at::DisableRecordFunctionGuard off;
    expect_thrown([&] { offload.serve_on_demand(); }, {"RecordFunction"});
  }
  offload.freeze();
  expect_thrown([&] { offload.serve_on_demand(); }, {"freeze()"});
}

// ---- declared ties ----

struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const Tensor& shared)
      : own(register_module("own", torch::nn::Linear(4, 4))),
        tied(register_parameter("tied", shared)) {}
  Tensor forward(const Tensor& x) { return torch::gelu(own(x)).mm(tied); }
  torch::nn::Linear own;
  Tensor tied;
};
TORCH_MODULE(Tied);

TEST(AddShared, LetsSeveralGroupsRegisterOneParameterWhereverItsBytesLive) {
  std::string hash;
  for (const bool nvme : {false, true}) {
    const SwapFolder folder;
    torch::manual_seed(2);
    const Tensor weight = torch::randn({4, 4}), copy = weight.clone().requires_grad_();
    std::vector<Tied> plain;
    for (int i = 0; i < 3; ++i) plain.emplace_back(copy);
    std::rotate(plain.begin(), plain.begin() + 1, plain.end());  // factories run after the module
    torch::manual_seed(2);
    torch::randn({4, 4});
    Offload offload(nvme ? headrace_test::all_on_nvme(folder.path()) : Settings{});
    headrace_test::GradientLog log;
    log.watch("shared.w", weight.requires_grad_());
    offload.add_shared({{"w", weight}});
    std::vector<Group<TiedImpl>> groups;
    for (int i = 0; i < 2; ++i) {
      groups.push_back(
          offload.add_group("t." + std::to_string(i), [weight] { return Tied(weight); }));
    }
    Tied last(weight);
    groups.push_back(offload.add_group("t.2", last));
    offload.add_rest(*last);  // nothing is left over
    offload.freeze();
    EXPECT_EQ(offload.engine().group_count(), 4u);
    EXPECT_EQ(offload.engine().parameter_count(), 7u);
    EXPECT_TRUE(groups[0].module()->tied.is_same(weight));
    Tensor x = torch::ones({2, 4}), y = x;
    for (auto& group : groups) x = offload(group, x);
    for (auto& module : plain) y = module(y);
    EXPECT_TRUE(same_bits(x, y));
    x.sum().backward();
    y.sum().backward();
    ASSERT_EQ(log.of("shared.w").size(), 1u) << "torch adds up what one pass gives";
    EXPECT_TRUE(same_bits(log.of("shared.w")[0], copy.grad()));
    EXPECT_EQ(offload.step({.learning_rate = 0.1f}).parameters_updated, 7u);
    EXPECT_FALSE(same_bits(weight, copy)) << "bound again, with new values";
    const std::string now = offload.engine().hash_parameters();
    EXPECT_TRUE(hash.empty() || hash == now);
    hash = now;
  }
}

TEST(AddShared, IsNamedWhereATieWasNotDeclared) {
  const Tensor weight = torch::ones({4, 4}).requires_grad_();
  Offload offload((Settings()));
  offload.add_group("a", Tied(weight));
  for (const auto& again : {std::function<void()>([&] { offload.add_group("b", Tied(weight)); }),
                            std::function<void()>([&] {
                              offload.add_shared({{"w", weight}});
                            })}) {
    expect_thrown(again, {"'a.tied' of group 'a'", "add_shared()"});
  }
}

TEST(AddShared, DoesNotMakeAViewOfTheParameterATie) {
  const Tensor weight = torch::ones({4, 4}).requires_grad_();
  Offload offload((Settings()));
  offload.add_shared({{"w", weight}});
  expect_thrown([&] { offload.add_group("b", Tied(weight.detach())); }, {"'b.tied'", "'shared.w'"});
}
}  // namespace
