// SPDX-License-Identifier: Apache-2.0
// Whatever touches a parked parameter throws, and the text names the group and the call that helps.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>
#include <string>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"

namespace {
using headrace_test::Block;
using headrace_test::make_block;

struct CloneableBlockImpl : torch::nn::Cloneable<CloneableBlockImpl> {
  CloneableBlockImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({8, 8})); }
  torch::Tensor forward(const torch::Tensor& x) { return x.mm(weight); }
  torch::Tensor weight;
};
TORCH_MODULE(CloneableBlock);

struct Touch {
  const char* name;
  std::function<void(CloneableBlock& block)> touch;
};
void PrintTo(const Touch& touch, std::ostream* out) { *out << touch.name; }

const Touch kTouches[] = {
    {"sum", [](CloneableBlock& b) { b->weight.sum(); }},
    {"item",
     [](CloneableBlock& b) {
       b->weight.index({0, 0}).item<float>();
     }},
    {"print",
     [](CloneableBlock& b) {
       std::ostringstream out;
       out << b->weight;
     }},
    {"clone", [](CloneableBlock& b) { b->weight.clone(); }},
    {"copy_to_it",
     [](CloneableBlock& b) {
       torch::NoGradGuard no_grad;
       b->weight.copy_(torch::ones({8, 8}));
     }},
    {"copy_from_it",
     [](CloneableBlock& b) {
       torch::empty({8, 8}).copy_(b->weight.detach());
     }},
    {"normal",
     [](CloneableBlock& b) {
       torch::NoGradGuard no_grad;
       b->weight.normal_();
     }},
    {"init", [](CloneableBlock& b) { torch::nn::init::xavier_uniform_(b->weight); }},
    {"to_bfloat16", [](CloneableBlock& b) { b->weight.to(torch::kBFloat16); }},
    {"module_to", [](CloneableBlock& b) { b->to(torch::kDouble); }},
    {"foreach",
     [](CloneableBlock& b) {
       torch::NoGradGuard no_grad;
       std::vector<torch::Tensor> weights{b->weight};
       at::_foreach_mul_(weights, 2.0);
     }},
    {"sgd",
     [](CloneableBlock& b) {
       b->weight.mutable_grad() = torch::ones({8, 8});
       torch::optim::SGD(b->parameters(), 0.1).step();
     }},
    {"adamw",
     [](CloneableBlock& b) {
       b->weight.mutable_grad() = torch::ones({8, 8});
       torch::optim::AdamW(b->parameters()).step();
     }},
    {"save",
     [](CloneableBlock& b) {
       std::ostringstream out;
       torch::save(b, out);
     }},
    {"load",
     [](CloneableBlock& b) {
       std::stringstream file;
       torch::save(CloneableBlock(), file);
       torch::load(b, file);
     }},
    {"module_clone", [](CloneableBlock& b) { b->clone(); }},
    {"linear",
     [](CloneableBlock& b) {
       torch::linear(torch::ones({2, 8}), b->weight);
     }},
    {"embedding",
     [](CloneableBlock& b) { torch::embedding(b->weight, torch::zeros({2}, torch::kLong)); }},
    {"attention",
     [](CloneableBlock& b) {
       const auto q = b->weight.view({1, 1, 8, 8});
       at::scaled_dot_product_attention(q, q, q);
     }},
    {"forward_unwrapped",
     [](CloneableBlock& b) {
       b->forward(torch::ones({2, 8}));
     }},
    {"data_ptr", [](CloneableBlock& b) { b->weight.data_ptr<float>(); }},
};

class ParkedAccess : public testing::TestWithParam<Touch> {};

TEST_P(ParkedAccess, ThrowsNamingTheGroup) {
  headrace::torch::Offload offload((headrace::Settings()));
  CloneableBlock block;
  const auto group = offload.add_group("h.7", block);
  offload.freeze();
  try {
    GetParam().touch(block);
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("group 'h.7'"), std::string::npos) << text;
    EXPECT_NE(text.find("'h.7.weight'"), std::string::npos) << text;
    EXPECT_NE(text.find("offload.gathered("), std::string::npos) << text;
  }
  block->weight.mutable_grad().reset();
  const auto scope = offload.gathered(group);
  EXPECT_EQ(block->weight.sum().item<float>(), 64) << "the values are as they were";
}

INSTANTIATE_TEST_SUITE_P(Every, ParkedAccess, testing::ValuesIn(kTouches),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ParkedAccessAfterClose, SaysThatTheOffloadIsClosed) {
  CloneableBlock block;
  {
    headrace::torch::Offload offload((headrace::Settings()));
    offload.add_group("h.7", block);
    offload.freeze();
  }
  try {
    block->weight.sum();
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("closed"), std::string::npos) << error.what();
  }
}

TEST(ParkedAccess, NamesTheParameterThatWasTouchedAndNoOther) {
  headrace_test::Mlp mlp(4, 4, 4);
  headrace::torch::Offload offload((headrace::Settings()));
  offload.add_group("h", mlp);
  offload.freeze();
  for (const auto& touched : mlp->named_parameters()) {
    std::string text;
    try {
      touched.value().sum();
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    for (const auto& other : mlp->named_parameters()) {
      const bool is_named = text.find("'h." + other.key() + "'") != std::string::npos;
      EXPECT_EQ(is_named, other.key() == touched.key()) << text;
    }
  }
}
}  // namespace
