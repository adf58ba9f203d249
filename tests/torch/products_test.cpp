// SPDX-License-Identifier: Apache-2.0
// products_test: the reference trainer's layer for CPUs that are slow in bf16 is at::linear's.
#include "../tools/train_gpt/products.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace train_gpt {
namespace {
TEST(LinearInF32, GivesTheValuesAndGradientsOfF32RoundedOnce) {
  torch::manual_seed(1);
  const auto random = [](at::IntArrayRef sizes) {
    return torch::randn(sizes).to(at::kBFloat16).requires_grad_();
  };
  const at::Tensor x = random({2, 3, 40}), weight = random({7, 40});
  const at::Tensor wide_x = x.detach().to(at::kFloat).requires_grad_();
  const at::Tensor wide_weight = weight.detach().to(at::kFloat).requires_grad_();
  const at::Tensor y = LinearInF32::apply(x, weight);
  const at::Tensor wide_y = at::linear(wide_x, wide_weight);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, wide_y.to(at::kBFloat16)));

  const at::Tensor gradient = torch::randn({2, 3, 7}).to(at::kBFloat16);
  y.backward(gradient);
  wide_y.backward(gradient.to(at::kFloat));
  constexpr double kHalfPlace = 1.0 / 256;  // of bf16, and the order of f32's sums
  EXPECT_TRUE(at::allclose(x.grad().to(at::kFloat), wide_x.grad(), kHalfPlace, 1e-6));
  EXPECT_TRUE(at::allclose(weight.grad().to(at::kFloat), wide_weight.grad(), kHalfPlace, 1e-6));
  EXPECT_EQ(weight.grad().scalar_type(), at::kBFloat16);
}

TEST(LinearInF32, KeepsNoWiderCopiesForBackward) {
  const at::Tensor x = torch::randn({4, 8}).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = torch::randn({8, 8}).to(at::kBFloat16).requires_grad_();
  const at::Tensor y = LinearInF32::apply(x, weight);
  const auto saved =
      dynamic_cast<torch::autograd::CppNode<LinearInF32>&>(*y.grad_fn()).ctx_.get_saved_variables();
  ASSERT_EQ(saved.size(), 2u);
  EXPECT_EQ(saved[0].data_ptr(), x.data_ptr());
  EXPECT_EQ(saved[1].data_ptr(), weight.data_ptr());
}
}  // namespace
}  // namespace train_gpt
