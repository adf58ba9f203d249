// SPDX-License-Identifier: Apache-2.0
// optimizer_rules_test: the update kernels, in f32, beside torch.optim in double over a thousand
// steps. rule_test derives how far they may be apart: less than 2e-4, a fifth of one step. Lion is
// not in torch; there it is compared with its paper's algorithm.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <random>

#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr std::int64_t kElements = 300;
constexpr std::uint64_t kSteps = 1000;
constexpr double kBound = 2e-5;

using ::torch::optim::Optimizer;
struct RuleCase {
  const char* name;
  OptimizerRule rule;
  Hyperparameters values;
  std::unique_ptr<Optimizer> (*make)(std::vector<at::Tensor> parameters, const Hyperparameters& h);
};

const RuleCase kCases[] = {
    {"AdamW",
     OptimizerRule::kAdamW,
     {.weight_decay = 0.1f},
     [](std::vector<at::Tensor> p, const Hyperparameters& h) -> std::unique_ptr<Optimizer> {
       return std::make_unique<::torch::optim::AdamW>(p, ::torch::optim::AdamWOptions()
                                                             .betas({h.beta1, h.beta2})
                                                             .eps(h.eps)
                                                             .weight_decay(h.weight_decay));
     }},
    {"Adam",
     OptimizerRule::kAdam,
     {.weight_decay = 0.01f},
     [](std::vector<at::Tensor> p, const Hyperparameters& h) -> std::unique_ptr<Optimizer> {
       return std::make_unique<::torch::optim::Adam>(p, ::torch::optim::AdamOptions()
                                                            .betas({h.beta1, h.beta2})
                                                            .eps(h.eps)
                                                            .weight_decay(h.weight_decay));
     }},
    {"Adagrad",
     OptimizerRule::kAdagrad,
     {.eps = 1e-10f, .weight_decay = 0.01f, .learning_rate_decay = 1e-3f},
     [](std::vector<at::Tensor> p, const Hyperparameters& h) -> std::unique_ptr<Optimizer> {
       return std::make_unique<::torch::optim::Adagrad>(p, ::torch::optim::AdagradOptions()
                                                               .eps(h.eps)
                                                               .weight_decay(h.weight_decay)
                                                               .lr_decay(h.learning_rate_decay));
     }},
    {"Sgd",
     OptimizerRule::kSgd,
     {.weight_decay = 0.01f},
     [](std::vector<at::Tensor> p, const Hyperparameters& h) -> std::unique_ptr<Optimizer> {
       return std::make_unique<::torch::optim::SGD>(
           p, ::torch::optim::SGDOptions(1).weight_decay(h.weight_decay));
     }},
    {"SgdMomentum",
     OptimizerRule::kSgdMomentum,
     {.weight_decay = 0.01f, .momentum = 0.9f, .dampening = 0.1f},
     [](std::vector<at::Tensor> p, const Hyperparameters& h) -> std::unique_ptr<Optimizer> {
       return std::make_unique<::torch::optim::SGD>(p, ::torch::optim::SGDOptions(1)
                                                           .weight_decay(h.weight_decay)
                                                           .momentum(h.momentum)
                                                           .dampening(h.dampening));
     }},
    {"SgdNesterov",
     OptimizerRule::kSgdMomentum,
     {.weight_decay = 0.01f, .momentum = 0.9f, .nesterov = true},
     [](std::vector<at::Tensor> p, const Hyperparameters& h) -> std::unique_ptr<Optimizer> {
       return std::make_unique<::torch::optim::SGD>(p, ::torch::optim::SGDOptions(1)
                                                           .weight_decay(h.weight_decay)
                                                           .momentum(h.momentum)
                                                           .nesterov(true));
     }},
};

double learning_rate(std::uint64_t t) {
  return 1e-3 * (1 + std::cos(static_cast<double>(t) / 100));
}

// The kernels' side: weights that are their own masters.
struct Ours {
  std::vector<float> weight, moment[kMaxMoments];
  explicit Ours(std::vector<float> first) : weight(std::move(first)) {
    for (auto& values : moment) values.assign(weight.size(), 0);
  }
  void step(OptimizerRule rule, const Hyperparameters& values, std::uint64_t t,
            const std::vector<float>& gradient) {
    UpdateSpan span;
    span.elements = weight.size();
    span.kind = MasterKind::kWeightItself;
    span.gradient_dtype = DType::kF32;
    span.weight = weight.data();
    span.moment[0] = moment[0].data();
    span.moment[1] = moment[1].data();
    span.gradient = gradient.data();
    update_function(choose_instruction_set())(
        span, make_update_step(rule, values, learning_rate(t), t, 1.0));
  }
};

std::vector<float> gradient_of(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<float> gradient(kElements);
  for (std::int64_t i = 0; i < kElements; ++i) {
    gradient[static_cast<std::size_t>(i)] =
        static_cast<float>(normal(random) * std::pow(10.0, static_cast<double>(i % 4) - 3));
  }
  return gradient;
}
std::vector<float> first_weights(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<float> weights(kElements);
  for (float& w : weights) w = static_cast<float>(normal(random) * 0.02);
  return weights;
}

class TorchRules : public ::testing::TestWithParam<RuleCase> {};
INSTANTIATE_TEST_SUITE_P(Every, TorchRules, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(TorchRules, AreWhatTheKernelsDo) {
  const RuleCase& of = GetParam();
  std::mt19937_64 random(99);
  Ours ours(first_weights(random));
  at::Tensor theirs =
      ::torch::tensor(ours.weight, at::kFloat).to(at::kDouble).detach().requires_grad_(true);
  const auto optimizer = of.make({theirs}, of.values);
  for (std::uint64_t t = 1; t <= kSteps; ++t) {
    const std::vector<float> gradient = gradient_of(random);
    theirs.mutable_grad() = ::torch::tensor(gradient, at::kFloat).to(at::kDouble);
    optimizer->param_groups()[0].options().set_lr(learning_rate(t));
    optimizer->step();
    ours.step(of.rule, of.values, t, gradient);
  }
  const at::Tensor apart =
      (::torch::tensor(ours.weight, at::kFloat).to(at::kDouble) - theirs.detach()).abs().max();
  EXPECT_LT(apart.item<double>(), kBound);
  RecordProperty("apart", std::to_string(apart.item<double>()));
  std::printf("%s: at most %.2g apart after %d steps\n", of.name, apart.item<double>(),
              static_cast<int>(kSteps));
}

// Chen et al. 2023, algorithm 2, in double.
TEST(PaperRules, LionIsWhatTheKernelsDo) {
  const Hyperparameters h{.beta2 = 0.99f, .weight_decay = 0.1f};
  std::mt19937_64 random(99);
  Ours ours(first_weights(random));
  std::vector<double> p(ours.weight.begin(), ours.weight.end()), m(p.size(), 0.0);
  int elsewhere = 0;
  for (std::uint64_t t = 1; t <= kSteps; ++t) {
    const std::vector<float> gradient = gradient_of(random);
    const double rate = learning_rate(t);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i];
      const double c = double{h.beta1} * m[i] + (1 - double{h.beta1}) * g;
      p[i] -= rate * ((c > 0) - (c < 0) + double{h.weight_decay} * p[i]);
      m[i] = double{h.beta2} * m[i] + (1 - double{h.beta2}) * g;
    }
    ours.step(OptimizerRule::kLion, h, t, gradient);
  }
  for (std::size_t i = 0; i < p.size(); ++i) elsewhere += std::fabs(ours.weight[i] - p[i]) > kBound;
  EXPECT_LE(elsewhere, 3) << "a sign near 0 may differ, in hardly any element";
}
}  // namespace
}  // namespace headrace::optimizer_cpu
