// SPDX-License-Identifier: Apache-2.0
// What would train or read other values than the trainer means is refused by name.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "headrace/torch/offload.hpp"
#include "torch/refusals.hpp"

namespace {
using headrace::Code;
using headrace::torch::Access;
using headrace::torch::Offload;
using headrace_test::expect_error;
using headrace_test::expect_torch_error;
using headrace_test::parked;

at::Tensor input() { return torch::ones({1, 4}).set_requires_grad(true); }

void load_weight(Offload& offload, const char* name, float value) {
  headrace::Engine& engine = offload.engine();
  engine.load(engine.parameter(name), headrace::Content::kWeight,
              [value](std::uint64_t, std::span<std::byte> values) {
                for (std::size_t i = 0; i < values.size(); i += sizeof value)
                  std::memcpy(values.data() + i, &value, sizeof value);
              });
}

TEST(Misuse, AGroupOfAnotherOffloadIsRefused) {
  torch::nn::Linear a(4, 4), b(4, 4);
  Offload first((headrace::Settings())), second((headrace::Settings()));
  const auto ga = first.add_group("a", a);
  second.add_group("b", b);
  const auto belongs = [](const std::function<void()>& call) {
    expect_error(call, Code::kInvalidArgument, {"group 'a'", "another Offload"});
  };
  belongs([&] { second.expect_repeated_gradients(ga); });
  first.freeze();
  second.freeze();
  belongs([&] { second(ga, input()); });
  belongs([&] { second.checkpoint(ga, input()); });
  belongs([&] { static_cast<void>(second.gathered(ga)); });
  belongs([&] { static_cast<void>(second.gathered(ga, Access::kModify)); });
  EXPECT_NO_THROW(first(ga, input()));
}

TEST(Misuse, ABackwardOverWeightsThatWereLoadedSinceIsRefused) {
  torch::nn::Linear m(4, 4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("g", m);
  offload.freeze();
  const at::Tensor y = offload(group, input());
  load_weight(offload, "g.weight", 7);
  expect_torch_error([&] { y.sum().backward(); }, {"modified by an inplace operation"});
  offload.discard_gradients();
  EXPECT_NO_THROW(offload(group, input()).sum().backward());
}

TEST(Misuse, ACheckpointAcrossAChangeOfAnyWeightsIsRefused) {
  torch::nn::Linear m(4, 4), r(4, 4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("g", m);
  const auto rest = offload.add_rest(*r);
  offload.freeze();
  const auto call = [&] {
    return offload.checkpoint(
        group, [m, r](at::Tensor& x) mutable { return r(m(x)); }, input());
  };
  const at::Tensor loaded = call();
  load_weight(offload, "g.weight", 7);
  expect_error([&] { loaded.sum().backward(); }, Code::kWrongState, {"group 'g'", "changed"});
  const at::Tensor modified = call();
  {
    const auto scope = offload.gathered(*rest, Access::kModify);
    torch::NoGradGuard no_grad;
    r->weight.fill_(5);
  }
  expect_error([&] { modified.sum().backward(); }, Code::kWrongState, {"group 'g'", "changed"});
  EXPECT_NO_THROW(call().sum().backward());
}

TEST(Misuse, ACheckpointOfABlockThatChangesItsInputIsRefused) {
  torch::nn::Linear m(4, 4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("g", m);
  offload.freeze();
  auto changing = [m](at::Tensor& x) mutable {
    x.mul_(2);
    return m(x);
  };
  expect_error(
      [&] {
        offload.checkpoint(group, changing, torch::ones({1, 4}));
      },
      Code::kUnsupported, {"group 'g'", "in place"});
  EXPECT_NO_THROW(offload.checkpoint(group, input()).sum().backward());
}

TEST(Misuse, FreezingBetweenForwardAndBackwardOfACheckpointIsRefused) {
  torch::nn::Linear m(4, 4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("g", m);
  offload.freeze();
  m->weight.set_requires_grad(false);
  const at::Tensor y = offload.checkpoint(group, input());
  m->weight.set_requires_grad(true);
  expect_error([&] { y.sum().backward(); }, Code::kWrongState, {"group 'g'", "unfrozen"});
  EXPECT_NO_THROW(offload.checkpoint(group, input()).sum().backward());
}

TEST(Misuse, AFreezeAfterTheFirstSaysSo) {
  for (const bool closed : {false, true}) {
    torch::nn::Linear m(4, 4);
    Offload offload((headrace::Settings()));
    const auto group = offload.add_group("g", m);
    offload.freeze();
    if (closed) offload.close();
    expect_error([&] { offload.freeze(); }, Code::kWrongState,
                 {closed ? "engine is closed" : "a second time"});
    if (!closed) {
      EXPECT_NO_THROW(offload(group, input()));
    }
  }
  Offload unused((headrace::Settings()));
  unused.close();
  expect_error([&] { unused.freeze(); }, Code::kWrongState, {"engine is closed"});
}

TEST(Misuse, AFreezeThatIsRefusedHasTakenNoValues) {
  torch::nn::Linear a(4, 4), b(4, 4);
  Offload offload((headrace::Settings()));
  offload.add_group("a", a);
  offload.add_group("b", b);
  b->to(torch::kBFloat16);
  for (int time = 0; time < 2; ++time)
    expect_error([&] { offload.freeze(); }, Code::kInvalidArgument, {"group 'b'"});
  EXPECT_NO_THROW(a->weight.sum());
  b->to(torch::kFloat);
  offload.freeze();

  Offload other((headrace::Settings()));
  torch::nn::Linear c(4, 4);
  const auto group = other.add_group("c", c);
  other.add_group("d", [runs = 0]() mutable {
    if (++runs == 2) throw std::runtime_error("the file is gone");
    return torch::nn::Linear(4, 4);
  });
  EXPECT_THROW(other.freeze(), std::runtime_error);
  expect_error([&] { other.freeze(); }, Code::kWrongState, {"a second time"});
  expect_error([&] { other(group, input()); }, Code::kWrongState,
               {"'c'", "ended in an error", "another Offload"});
}

void by_another_thread(const std::function<void()>& call) {
  std::thread([&] { call(); }).join();
}
void expect_second_thread(const std::function<void()>& call) {
  expect_error(call, Code::kWrongState, {"second thread", "mutex"});
}

// An actor that runs beside its trainer: what lets one thread's pass take weights from another's.
TEST(Misuse, ASecondThreadIsRefusedWhileTheFirstIsInACallOrABackwardPass) {
  torch::nn::Linear m(4, 4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("g", m);
  offload.freeze();
  const auto is_refused = [&] {
    by_another_thread([&] {
      expect_second_thread([&] { offload(group, input()); });
      expect_second_thread([&] { offload.step({}); });
      expect_second_thread([&] { offload.close(); });
    });
  };
  const at::Tensor y = offload.run(group, [&] {
    is_refused();
    return m(input());
  });
  by_another_thread([&] { EXPECT_NO_THROW(offload(group, input())); });  // between the two
  const at::Tensor loss = y.sum();
  y.register_hook([&](const at::Tensor&) { is_refused(); });
  loss.backward();
  by_another_thread([&] { EXPECT_EQ(offload.step({}).parameters_updated, 2u); });

  const at::Tensor again = offload(group, input());
  again.register_hook([](const at::Tensor&) { throw std::runtime_error("of the trainer's"); });
  EXPECT_THROW(again.sum().backward(), std::runtime_error);
  by_another_thread([&] {
    offload.discard_gradients();  // whoever left the pass
    EXPECT_NO_THROW(offload(group, input()));
  });
}

TEST(Misuse, AScopeIsNotEndedByASecondThreadWhileTheFirstComputes) {
  for (const Access access : {Access::kRead, Access::kModify}) {
    torch::nn::Linear m(4, 4), other(4, 4);
    Offload offload((headrace::Settings()));
    const auto group = offload.add_group("g", m);
    const auto computing = offload.add_group("other", other);
    offload.freeze();
    auto scope = offload.gathered(group, access);
    const auto is_refused = [&] {
      by_another_thread([&] { expect_second_thread([&] { scope.release(); }); });
      EXPECT_FALSE(parked(m->weight)) << "the scope is still open";
    };
    const at::Tensor y = offload.run(computing, [&] {
      is_refused();
      return other(input());
    });
    y.register_hook([&](const at::Tensor&) { is_refused(); });
    y.sum().backward();
    by_another_thread([&] { EXPECT_NO_THROW(scope.release()); });
    EXPECT_TRUE(parked(m->weight));
    EXPECT_NO_THROW(offload.run(computing, [&] { scope.release(); })) << "it has ended";
  }
}

TEST(Misuse, ChangesThatASecondThreadDropsWhileTheFirstComputesAreReported) {
  torch::nn::Linear m(4, 4), other(4, 4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("g", m);
  const auto computing = offload.add_group("other", other);
  offload.freeze();
  std::optional scope(offload.gathered(group, Access::kModify));
  const auto call = [&] {
    return offload.run(computing, [&] { by_another_thread([&] { scope.reset(); }); });
  };
  expect_error(call, Code::kWrongState, {"group 'g'", "lost", "second thread"});
  EXPECT_NO_THROW(offload(group, input()));
}

TEST(Misuse, DiscardedChangesBringBackWhatTorchMovedAway) {
  torch::nn::Linear m(4, 4);
  Offload offload((headrace::Settings()));
  const auto group = offload.add_group("g", m);
  offload.freeze();
  const at::Tensor before = offload(group, input());
  std::stringstream file;
  torch::save(torch::nn::Linear(4, 4), file);
  {
    auto scope = offload.gathered(group, Access::kModify);
    torch::load(m, file);
    scope.discard();
  }
  {
    auto scope = offload.gathered(group, Access::kModify);
    m->to(torch::kDouble);
    scope.discard();
  }
  EXPECT_TRUE(torch::equal(offload(group, input()), before));
}

// What a hook of the trainer's own calls when a gradient has arrived.
class CallingHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CallingHook(std::function<void()> call) : call_(std::move(call)) {}
  void operator()(const torch::autograd::Variable&) override { call_(); }

 private:
  std::function<void()> call_;
};

TEST(Misuse, ClosingWithinAHookOfTheTrainersIsNoCrash) {
  torch::nn::Linear m(4, 4), r(4, 4);
  std::optional<Offload> offload((headrace::Settings()));
  torch::autograd::impl::set_post_acc_grad_hooks(
      r->weight, std::make_unique<CallingHook>([&] { offload->close(); }));
  const auto group = offload->add_group("g", m);
  offload->add_rest(*r);
  offload->freeze();
  const at::Tensor loss = r((*offload)(group, input())).sum();
  EXPECT_THROW(loss.backward(), std::exception);
  EXPECT_NO_THROW(offload->close());
}

TEST(Misuse, AnOffloadWithARestMayEndBeforeAScope) {
  torch::nn::Linear m(4, 4), r(4, 4);
  std::optional<Offload> offload((headrace::Settings()));
  const auto group = offload->add_group("g", m);
  offload->add_rest(*r);
  offload->freeze();
  testing::internal::CaptureStderr();
  {
    const auto scope = offload->gathered(group);
    offload.reset();
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "the engine says what it could not free";
}
}  // namespace
