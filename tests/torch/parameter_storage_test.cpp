// SPDX-License-Identifier: Apache-2.0
// The storage under a section's parameters, bound to plain memory.
#include "headrace/torch/parameter_storage.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace {
using headrace::torch::detail::ParameterStorage;

constexpr std::size_t kElements = 512;

// The text that `touch` throws, or "" when it throws none.
template <class F>
std::string text_of(F touch) {
  try {
    touch();
  } catch (const c10::Error& error) {
    return error.what();
  }
  return "";
}

TEST(ParameterStorage, ViewsReadWhateverAddressIsBound) {
  ParameterStorage storage(headrace::torch::detail::Place(), at::kFloat, kElements * 4, "parked");
  const at::Tensor view = storage.view({2, 3});
  for (const float base : {1.0f, 7.0f}) {
    std::vector<float> memory(kElements);
    for (std::size_t i = 0; i < 6; ++i) memory[i] = base + static_cast<float>(i);
    storage.bind(memory.data());
    EXPECT_EQ(view.data_ptr<float>(), memory.data());
    EXPECT_EQ(view.sum().item<float>(), 6 * base + 15);
    EXPECT_TRUE(view.is_contiguous());
    storage.park("parked");
  }
}

TEST(ParameterStorage, ParkedThrowsTheGivenTextAndKeepsItsSize) {
  ParameterStorage storage(headrace::torch::detail::Place(), at::kBFloat16, kElements * 2,
                           "first text");
  const at::Tensor view = storage.view({16});
  EXPECT_NE(text_of([&] { view.sum(); }).find("first text"), std::string::npos);
  std::vector<c10::BFloat16> memory(kElements);
  storage.bind(memory.data());
  EXPECT_EQ(text_of([&] { view.sum(); }), "");
  storage.park("second text");
  EXPECT_NE(text_of([&] { view.clone(); }).find("second text"), std::string::npos);
  EXPECT_EQ(storage.size_bytes(), kElements * 2);
  EXPECT_EQ(view.t().detach().view({4, 4}).size(0), 4) << "what needs no values goes on working";
}

TEST(ParameterStorage, KnowsATensorThatLeftIt) {
  ParameterStorage storage(headrace::torch::detail::Place(), at::kFloat, kElements * 4, "parked");
  at::Tensor parameter = at::zeros({3});
  EXPECT_FALSE(storage.holds(parameter));
  parameter.set_data(storage.view({3}));
  EXPECT_TRUE(storage.holds(parameter));
  parameter.set_data(at::zeros({3}));
  EXPECT_FALSE(storage.holds(parameter));
}

TEST(ParameterStorage, ABackwardPassReadsTheAddressBoundThen) {
  ParameterStorage storage(headrace::torch::detail::Place(), at::kFloat, kElements * 4, "parked");
  at::Tensor weight = at::zeros({4}).requires_grad_();
  weight.set_data(storage.view({4}));
  at::Tensor x = at::ones({4}).requires_grad_();
  std::vector<float> forward(kElements, 2.0f), backward(kElements, 2.0f);
  storage.bind(forward.data());
  const at::Tensor y = (x * weight).sum();
  storage.park("parked");
  forward.assign(kElements, -1.0f);
  EXPECT_NE(text_of([&] { y.backward({}, /*retain_graph=*/true); }).find("parked"),
            std::string::npos);
  storage.bind(backward.data());
  x.mutable_grad().reset();
  y.backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 2.0f)));
}
}  // namespace
