// SPDX-License-Identifier: Apache-2.0
// rule_test.cpp: how far the f32 update may drift from AdamW in double precision.
//
// The bound is a running error analysis: beside the double values (m, v, p) it carries Em, Ev, Ep,
// bounds on the distance of the f32 ones. u = 2^-24 is the rounding of one f32 operation or
// constant. With r = 2u (the gradient factor and its product), c1 = 1 - beta1, c2 = 1 - beta2, d =
// 1 - lr wd, and primes for the new values:
//   Em' = beta1 (Em + u |m|) + c1 |g| (u + r)      + u |m'|     product beta1 m; constant c1; the
//   fma's rounding Ev' = beta2 (Ev + u v)   + c2 g^2 (2u + 2r)    + u v'       constant c2 and
//   product c2 g; g twice; the fma ED  = h (Ev' / (2v') + 2u) + u D    h = sqrt(v') / sqrt(1 -
//   beta2^t), D = h + eps: sqrt halves a relative error Eq  = Em' / D + q (ED / D + u)      q =
//   |m'| / D Ep' = d (Ep + 2u |p|) + s (Eq + u q) + u |p'|               constant d and product;
//   constant s; the fma
// Products of two errors are left out (but for m, which may cross zero); they are below 1e-3 of the
// rest while Ev/v < 1e-3, so what each step adds is taken times 1.01.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optimizer_cpu/update_fixture.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr double kU = 0x1p-24;
constexpr double kSlack = 1.01;

struct Tracked {
  double m = 0, v = 0, p = 0;
  double m_error = 0, v_error = 0, p_error = 0;
};

void step_in_double(Tracked& x, double gradient, const Hyperparameters& set, double rate,
                    std::uint64_t t, double factor) {
  const double beta1 = set.beta1, beta2 = set.beta2, c1 = 1 - beta1, c2 = 1 - beta2;
  const double d = 1 - rate * set.weight_decay;
  const double s = rate / (1 - std::pow(beta1, static_cast<double>(t)));
  const double g = gradient * factor;
  const double r = 2 * kU;
  const double old_m = x.m, old_v = x.v, old_p = x.p;
  x.m = beta1 * x.m + c1 * g;
  x.v = beta2 * x.v + c2 * g * g;
  const double h = std::sqrt(x.v) / std::sqrt(1 - std::pow(beta2, static_cast<double>(t)));
  const double denominator = h + set.eps;
  x.p = d * x.p - s * x.m / denominator;

  const double old_m_error = x.m_error;
  x.m_error = beta1 * x.m_error +
              kSlack * (beta1 * kU * (std::fabs(old_m) + old_m_error) +
                        c1 * std::fabs(g) * (kU + r) + kU * (std::fabs(x.m) + old_m_error));
  x.v_error =
      beta2 * x.v_error + kSlack * (beta2 * kU * old_v + c2 * g * g * (2 * kU + 2 * r) + kU * x.v);
  const double h_error = h * (x.v_error / (2 * x.v) + 2 * kU) + kU * denominator;
  const double q = std::fabs(x.m) / denominator;
  const double q_error = x.m_error / denominator + q * (h_error / denominator + kU);
  const double p_new = 2 * d * kU * std::fabs(old_p) + s * (q_error + kU * q) + kU * std::fabs(x.p);
  x.p_error = d * x.p_error + kSlack * p_new;
}

TEST(AdamWError, StaysWithinTheDerivedBoundOverAThousandSteps) {
  constexpr std::uint64_t kElements = 300, kSteps = 1000;
  const std::uint64_t seed = 99;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const Hyperparameters set{.weight_decay = 0.1f};
  const double factor = 0.7;
  UpdateBuffers buffers(kElements, MasterKind::kF32, DType::kF32, 0);
  const UpdateSpan span = buffers.span();
  std::vector<Tracked> exact(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) {
    const auto p = static_cast<float>(normal(random) * 0.02);
    buffers.set_master(i, p);
    exact[i].p = p;
    buffers.f32_moment(0)[i] = buffers.f32_moment(1)[i] = 0.0f;
  }
  double worst_share = 0;
  for (std::uint64_t t = 1; t <= kSteps; ++t) {
    const double rate = 1e-3 * (1 + std::cos(static_cast<double>(t) / 100));
    const UpdateStep step = make_update_step(OptimizerRule::kAdamW, set, rate, t, factor);
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const auto g = static_cast<float>(
          normal(random) * std::pow(10.0, static_cast<double>(i % 7) - 5) + 1e-4);
      buffers.set_gradient(i, g);
      step_in_double(exact[i], g, set, rate, t, factor);
    }
    update_function(choose_instruction_set())(span, step);
    for (std::uint64_t i = 0; i < kElements; ++i) {
      ASSERT_LE(std::fabs(buffers.f32_moment(0)[i] - exact[i].m), exact[i].m_error)
          << "element " << i << " step " << t;
      ASSERT_LE(std::fabs(buffers.f32_moment(1)[i] - exact[i].v), exact[i].v_error)
          << "element " << i << " step " << t;
      const double error = std::fabs(static_cast<float*>(span.master)[i] - exact[i].p);
      ASSERT_LE(error, exact[i].p_error) << "element " << i << " step " << t;
      worst_share = std::max(worst_share, error / exact[i].p_error);
    }
  }
  // A bound that says nothing would pass too. v's error is at most 2u / (1 - beta2) = 1.2e-4 of it,
  // which a thousand steps of 1e-3 turn into about 6e-5; rounding p, 3u a step, adds about as much:
  // together less than a fifth of one step. And the errors come to a visible share of it.
  for (const Tracked& x : exact) EXPECT_LT(x.p_error, 1.5e-4);
  EXPECT_GT(worst_share, 1e-3);
}

TEST(AdamWStepConstants, AreRoundedOnceFromDouble) {
  const Hyperparameters set{.learning_rate_scale = 0.5f, .weight_decay = 0.1f};
  const UpdateStep step = make_update_step(OptimizerRule::kAdamW, set, 3e-4, 12345, 0.25);
  const double rate = 3e-4 * 0.5;
  const double beta1 = 0.9f, beta2 = 0.999f;
  EXPECT_EQ(step.decay_factor, static_cast<float>(1 - rate * static_cast<double>(0.1f)));
  EXPECT_EQ(step.one_minus_beta1, static_cast<float>(1 - beta1));
  EXPECT_EQ(step.one_minus_beta2, static_cast<float>(1 - beta2));
  EXPECT_EQ(step.step_size, static_cast<float>(rate / (1 - std::pow(beta1, 12345))));
  EXPECT_EQ(step.inverse_sqrt_bias2, static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, 12345))));
  EXPECT_EQ(step.gradient_factor, 0.25f);
  EXPECT_EQ(make_update_step(OptimizerRule::kAdamW, set, 3e-4, 1, 1).step_size,
            static_cast<float>(rate / (1 - beta1)));
}
}  // namespace
}  // namespace headrace::optimizer_cpu
