// SPDX-License-Identifier: Apache-2.0
// What stays torch's beside the parameters, and which parameters are refused for their strides.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/refusals.hpp"

namespace {
using headrace::Code;
using headrace::torch::Offload;
using headrace_test::all_parked;
using headrace_test::expect_error;
using headrace_test::parked;
using headrace_test::same_bits;

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
}  // namespace
