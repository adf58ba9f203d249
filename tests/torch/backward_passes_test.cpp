// SPDX-License-Identifier: Apache-2.0
// Which groups a backward pass holds, for how long, and what it leaves where an exception ends it.
#include "headrace/torch/backward_passes.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "torch/refusals.hpp"

namespace {
using headrace::torch::detail::BackwardPasses;
using headrace::torch::detail::BlockCall;
using headrace::torch::detail::OffloadedGroup;
using LetGo = BackwardPasses::LetGo;

// A group that nothing but a pass has bound.
OffloadedGroup bound_group(int trained, int frozen = 0) {
  OffloadedGroup group;
  for (int i = 0; i < trained + frozen; ++i) {
    const headrace::ParameterSpec spec{"w", headrace::DType::kF32, {2}};
    group.parameters().emplace_back(headrace::torch::detail::Place(), spec, headrace::ParameterId{},
                                    "w", "g", " is parked.",
                                    torch::ones({2}).set_requires_grad(i < trained));
  }
  group.bindings = 1;
  return group;
}

TEST(BackwardPasses, GoThroughTheExampleOfTheirHeader) {
  OffloadedGroup a = bound_group(2), b = bound_group(2), c = bound_group(2, /*frozen=*/1);
  BackwardPasses passes;
  EXPECT_TRUE(passes.begin(7));
  EXPECT_FALSE(passes.begin(7)) << "it is known";
  passes.await_gradients(c, 7);
  EXPECT_FALSE(passes.arrived(c, 7, true));
  EXPECT_FALSE(passes.arrived(c, 7, true)) << "its frozen parameter may still be read";
  passes.await_gradients(b, 7);
  EXPECT_FALSE(passes.arrived(b, 7, true));
  EXPECT_EQ(passes.let_go_of_oldest(7, /*of_any=*/false), LetGo{&c}) << "b awaits a gradient";
  passes.await_gradients(a, 7);
  EXPECT_FALSE(passes.arrived(a, 7, true));
  EXPECT_TRUE(passes.arrived(a, 7, true));
  EXPECT_EQ(passes.end(7), LetGo{&b});
  EXPECT_TRUE(passes.end_every().empty());
  EXPECT_NO_THROW(passes.refuse_partial_gradients());
}

// Of two calls of a group with one trained and one frozen parameter.
TEST(BackwardPasses, AGroupIsDoneWithTheGradientsOfItsInputs) {
  const auto one = std::make_shared<const BlockCall>(BlockCall{2, true});
  const auto other = std::make_shared<const BlockCall>(BlockCall{1, true});
  OffloadedGroup a = bound_group(1, /*frozen=*/1);
  BackwardPasses passes;
  passes.begin(7);
  passes.await_gradients(a, 7);
  passes.await_inputs_of(a, 7, one);
  passes.await_inputs_of(a, 7, other);
  passes.await_inputs_of(a, 7, one);  // by another of its outputs
  EXPECT_FALSE(passes.input_arrived(a, 7, *one));
  EXPECT_FALSE(passes.input_arrived(a, 8, *one)) << "of another pass";
  EXPECT_FALSE(passes.arrived(a, 7, true));
  EXPECT_FALSE(passes.input_arrived(a, 7, *other));
  EXPECT_EQ(passes.let_go_of_oldest(7, /*of_any=*/false), LetGo{&a}) << "it awaits no gradient";
  passes.await_gradients(a, 7);
  passes.await_inputs_of(a, 7, other);
  EXPECT_FALSE(passes.input_arrived(a, 7, *other));
  EXPECT_TRUE(passes.arrived(a, 7, true));
  passes.await_gradients(a, 7);
  passes.await_inputs_of(a, 7, std::make_shared<const BlockCall>());
  EXPECT_FALSE(passes.arrived(a, 7, true)) << "whose inputs are not known";
}

TEST(BackwardPasses, LetGoOfNothingThatIsInUseOrAnotherPasses) {
  OffloadedGroup a = bound_group(1), b = bound_group(1);
  BackwardPasses passes;
  passes.await_gradients(a, 7);
  passes.touch(b, 7);
  ++b.bindings;  // an operator's, too
  EXPECT_EQ(passes.let_go_of_oldest(8, /*of_any=*/false), LetGo{});
  EXPECT_EQ(passes.let_go_of_oldest(8, /*of_any=*/true), LetGo{&a});
  EXPECT_EQ(passes.let_go_of_oldest(7, /*of_any=*/true), LetGo{});
}

TEST(BackwardPasses, CountWhatABrokenOneBroughtUntilItIsDiscarded) {
  OffloadedGroup a = bound_group(3);
  BackwardPasses passes;
  passes.begin(7);
  passes.await_gradients(a, 7);
  passes.arrived(a, 7, true);
  passes.arrived(a, 7, /*gradient=*/false);
  EXPECT_FALSE(passes.of_another_thread());
  std::thread([&] { EXPECT_TRUE(passes.of_another_thread()); }).join();
  EXPECT_EQ(passes.end_every(), LetGo{&a});
  headrace_test::expect_error([&] { passes.refuse_partial_gradients(); },
                              headrace::Code::kWrongState, {"after 1 of its gradients"});
  passes.forget_partial_gradients();
  EXPECT_NO_THROW(passes.refuse_partial_gradients());
}
}  // namespace
