// SPDX-License-Identifier: Apache-2.0
// rule_test: how far the f32 updates may drift from their formulas in double precision, and how far
// they do.
//
// The bound is a running error analysis (Higham, "Accuracy and Stability of Numerical Algorithms",
// section 3.3), done by arithmetic: a Bounded is a double value and how far the f32 one may be from
// it. Every operation of the kernel is done on those, and each rounding to f32 adds 2^-24 of the
// result. torch_rules_test compares the double values with torch.optim.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optimizer_cpu/update_fixture.hpp"

namespace headrace::optimizer_cpu {
namespace {
struct Bounded {
  double value = 0;
  double error = 0;
};
Bounded operator+(Bounded a, Bounded b) { return {a.value + b.value, a.error + b.error}; }
Bounded operator-(Bounded a, Bounded b) { return {a.value - b.value, a.error + b.error}; }
Bounded operator*(Bounded a, Bounded b) {
  return {a.value * b.value,
          std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error};
}
Bounded operator/(Bounded a, Bounded b) {
  const double quotient = a.value / b.value;
  return {quotient, (a.error + std::fabs(quotient) * b.error) / (std::fabs(b.value) - b.error)};
}
Bounded root(Bounded a) {
  const double value = std::sqrt(a.value);
  if (a.error == 0) return {value, 0};
  return {value, a.error / (value + std::sqrt(std::max(a.value - a.error, 0.0)))};
}
// Of a value that is rounded to f32: half a unit in its last place, and of a denormal one's.
Bounded rounded(Bounded a) {
  return {a.value, a.error + 0x1p-24 * (std::fabs(a.value) + a.error) + 0x1p-150};
}
Bounded constant(double value) { return rounded({value, 0}); }
Bounded fused(Bounded a, Bounded b, Bounded c) { return rounded(a * b + c); }
Bounded product(Bounded a, Bounded b) { return rounded(a * b); }

// Lion's sign, where the f32 argument may have the other one.
Bounded sign_of(Bounded c) {
  const double value = c.value > 0 ? 1 : c.value < 0 ? -1 : 0;
  return {value, std::fabs(c.value) <= c.error ? 2.0 : 0.0};
}

// What the kernel does (update.hpp), on Bounded.
struct Tracked {
  Bounded p, moment[kMaxMoments];

  void step(OptimizerRule rule, const Hyperparameters& h, double rate, std::uint64_t t,
            float gradient, double factor) {
    const double time = static_cast<double>(t);
    Bounded g = product({gradient, 0}, constant(factor));
    if (decays_decoupled(rule)) {
      p = product(p, constant(1 - rate * h.weight_decay));
    } else if (h.weight_decay != 0) {
      g = fused({h.weight_decay, 0}, p, g);
    }
    Bounded& m = moment[0];
    Bounded& v = moment[1];
    const Bounded beta1{h.beta1, 0}, beta2{h.beta2, 0};
    const Bounded rest1 = constant(1 - double{h.beta1}), rest2 = constant(1 - double{h.beta2});
    switch (rule) {
      case OptimizerRule::kAdamW:
      case OptimizerRule::kAdam: {
        m = fused(rest1, g, product(beta1, m));
        v = fused(product(rest2, g), g, product(beta2, v));
        const Bounded inverse = constant(1 / std::sqrt(1 - std::pow(double{h.beta2}, time)));
        const Bounded denominator = fused(rounded(root(v)), inverse, {h.eps, 0});
        const Bounded size = constant(rate / (1 - std::pow(double{h.beta1}, time)));
        p = rounded(p - size * rounded(m / denominator));
        return;
      }
      case OptimizerRule::kAdagrad: {
        m = fused(g, g, m);
        const Bounded denominator = rounded(rounded(root(m)) + Bounded{h.eps, 0});
        const Bounded size = constant(rate / (1 + (time - 1) * h.learning_rate_decay));
        p = rounded(p - size * rounded(g / denominator));
        return;
      }
      case OptimizerRule::kLion: {
        const Bounded c = fused(rest1, g, product(beta1, m));
        m = fused(rest2, g, product(beta2, m));
        p = rounded(p - constant(rate) * sign_of(c));
        return;
      }
      case OptimizerRule::kSgdMomentum: {
        const Bounded momentum{h.momentum, 0};
        const Bounded damping = constant(t == 1 ? 1 : 1 - double{h.dampening});
        m = fused(damping, g, product(momentum, m));
        p = rounded(p - constant(rate) * (h.nesterov ? fused(momentum, m, g) : m));
        return;
      }
      case OptimizerRule::kSgd:
        p = rounded(p - constant(rate) * g);
        return;
    }
  }
};

struct RuleCase {
  const char* name;
  OptimizerRule rule;
  Hyperparameters values;
};
const RuleCase kCases[] = {
    {"AdamW", OptimizerRule::kAdamW, {.weight_decay = 0.1f}},
    // A larger decay, added to gradients this small, feeds errors of p back into what p is divided
    // by.
    {"Adam", OptimizerRule::kAdam, {.weight_decay = 0.001f}},
    {"Adagrad",
     OptimizerRule::kAdagrad,
     {.eps = 1e-10f, .weight_decay = 0.01f, .learning_rate_decay = 1e-3f}},
    {"Lion", OptimizerRule::kLion, {.beta2 = 0.99f, .weight_decay = 0.1f}},
    {"Sgd", OptimizerRule::kSgd, {.weight_decay = 0.01f}},
    {"SgdMomentum",
     OptimizerRule::kSgdMomentum,
     {.weight_decay = 0.01f, .momentum = 0.9f, .dampening = 0.1f}},
    {"SgdNesterov",
     OptimizerRule::kSgdMomentum,
     {.weight_decay = 0.01f, .momentum = 0.9f, .nesterov = true}},
};

class Drift : public ::testing::TestWithParam<RuleCase> {};
INSTANTIATE_TEST_SUITE_P(OfEvery, Drift, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(Drift, StaysWithinTheRunningBoundOverAThousandSteps) {
  const auto& [name, rule, values] = GetParam();
  constexpr std::uint64_t kElements = 300, kSteps = 1000;
  const std::uint64_t seed = 99;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const double factor = 0.7;
  UpdateBuffers buffers({.rule = rule,
                         .kind = MasterKind::kF32,
                         .gradient_dtype = DType::kF32,
                         .elements = kElements});
  std::vector<Tracked> exact(kElements);
  const std::uint32_t kept = moments(arithmetic_of(rule));
  for (std::uint64_t i = 0; i < kElements; ++i) {
    const auto p = static_cast<float>(normal(random) * 0.02);
    buffers.set_master(i, p);
    exact[i].p = {p, 0};
    for (std::uint32_t k = 0; k < kept; ++k) buffers.f32_moment(k)[i] = 0;
  }
  double worst_share = 0, ambiguous = 0;
  for (std::uint64_t t = 1; t <= kSteps; ++t) {
    const double rate = 1e-3 * (1 + std::cos(static_cast<double>(t) / 100));
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const auto g =
          static_cast<float>(normal(random) * std::pow(10.0, static_cast<double>(i % 4) - 3));
      buffers.set_gradient(i, g);
      exact[i].step(rule, values, rate, t, g, factor);
    }
    update_function(choose_instruction_set())(buffers.span(),
                                              make_update_step(rule, values, rate, t, factor));
    const auto* const master = static_cast<float*>(buffers.master.data());
    for (std::uint64_t i = 0; i < kElements; ++i) {
      for (std::uint32_t k = 0; k < kept; ++k) {
        ASSERT_LE(std::fabs(buffers.f32_moment(k)[i] - exact[i].moment[k].value),
                  exact[i].moment[k].error)
            << "moment " << k << " element " << i << " step " << t;
      }
      const double error = std::fabs(master[i] - exact[i].p.value);
      ASSERT_LE(error, exact[i].p.error) << "element " << i << " step " << t;
      worst_share = std::max(worst_share, error / exact[i].p.error);
    }
  }
  // A bound that says nothing would pass too: it is to be less than a fifth of one step of 1e-3 (of
  // Lion, whose sign may be the other one near 0, for most elements), and errors a visible share.
  double largest = 0;
  for (const Tracked& x : exact) {
    ambiguous += x.p.error > 2e-4 ? 1 : 0;
    largest = std::max(largest, x.p.error);
  }
  std::printf("%s: bound at most %.2g, errors up to %.2g of their bound\n", name, largest,
              worst_share);
  EXPECT_LE(ambiguous, rule == OptimizerRule::kLion ? kElements / 20 : 0) << name;
  EXPECT_GT(worst_share, 1e-3);
}

TEST(StepConstants, AreRoundedOnceFromDouble) {
  const Hyperparameters set{.learning_rate_scale = 0.5f, .weight_decay = 0.1f};
  const UpdateStep step = make_update_step(OptimizerRule::kAdamW, set, 3e-4, 12345, 0.25);
  const double rate = 3e-4 * 0.5;
  const double beta1 = 0.9f, beta2 = 0.999f;
  EXPECT_EQ(step.decay_factor, static_cast<float>(1 - rate * static_cast<double>(0.1f)));
  EXPECT_EQ(step.l2, 0);
  EXPECT_EQ(step.one_minus_beta1, static_cast<float>(1 - beta1));
  EXPECT_EQ(step.one_minus_beta2, static_cast<float>(1 - beta2));
  EXPECT_EQ(step.step_size, static_cast<float>(rate / (1 - std::pow(beta1, 12345))));
  EXPECT_EQ(step.inverse_sqrt_bias2, static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, 12345))));
  EXPECT_EQ(step.gradient_factor, 0.25f);
  EXPECT_EQ(make_update_step(OptimizerRule::kAdamW, set, 3e-4, 1, 1).step_size,
            static_cast<float>(rate / (1 - beta1)));
}

TEST(StepConstants, FollowWhatARuleIsAskedFor) {
  const auto of = [](OptimizerRule rule, const Hyperparameters& values, std::uint64_t t = 5) {
    return make_update_step(rule, values, 0.5, t, 1);
  };
  const UpdateStep uncorrected = of(OptimizerRule::kAdam, {.bias_correction = false});
  EXPECT_EQ(uncorrected.step_size, 0.5f);
  EXPECT_EQ(uncorrected.inverse_sqrt_bias2, 1.0f);
  EXPECT_EQ(uncorrected.l2, 0.01f);
  EXPECT_EQ(uncorrected.decay_factor, 1.0f);
  EXPECT_EQ(of(OptimizerRule::kSgd, {.maximize = true}).gradient_factor, -1.0f);
  const Hyperparameters damped{.momentum = 0.9f, .dampening = 0.25f};
  EXPECT_EQ(of(OptimizerRule::kSgdMomentum, damped, 1).one_minus_beta1, 1.0f);
  EXPECT_EQ(of(OptimizerRule::kSgdMomentum, damped, 2).one_minus_beta1, 0.75f);
  EXPECT_EQ(of(OptimizerRule::kSgdMomentum, damped).lookahead, 0.0f);
  EXPECT_EQ(of(OptimizerRule::kSgdMomentum, {.momentum = 0.9f, .nesterov = true}).lookahead, 0.9f);
}
}  // namespace
}  // namespace headrace::optimizer_cpu
