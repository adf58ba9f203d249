// SPDX-License-Identifier: Apache-2.0
// update_cases.hpp: every kind of update there is, and numbers to give it.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "optimizer_cpu/update_fixture.hpp"

namespace headrace::optimizer_cpu {
inline constexpr std::uint64_t kSeed = 20240611;

// Numbers that go wrong first: zeros, denormals, the ends of the range, ties of the bf16 rounding,
// infinities, NaNs.
inline constexpr std::uint32_t kHard[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x00400000, 0x7f7fffff,
    0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffa00001, 0x7fffffff,
    0x3f808000, 0x3f818000, 0x3f807fff, 0x7f7f8000, 0x00008000, 0x3f800000, 0x1e3ce508, 0x9e3ce508};

inline float hard_or_ordinary(std::mt19937_64& random, std::uint64_t hard_in_eight) {
  const std::uint64_t draw = random();
  if (draw % 8 < hard_in_eight) return std::bit_cast<float>(kHard[(draw >> 8) % std::size(kHard)]);
  if (draw % 8 == 7)
    return std::bit_cast<float>(static_cast<std::uint32_t>(draw >> 32));  // any pattern
  return static_cast<float>(static_cast<double>(draw >> 11) * 0x1p-53 - 0.5);
}

// Moments are what an encoder leaves: sums of squares are hardly ever negative.
inline void fill(UpdateBuffers& buffers, std::mt19937_64& random, std::uint64_t hard_in_eight) {
  const std::uint64_t elements = buffers.of.elements;
  std::vector<float> values(elements);
  for (std::uint64_t i = 0; i < elements; ++i) {
    buffers.set_master(i, hard_or_ordinary(random, hard_in_eight));
    buffers.set_gradient(i, hard_or_ordinary(random, hard_in_eight));
  }
  const Arithmetic arithmetic = arithmetic_of(buffers.of.rule);
  for (std::uint32_t k = 0; k < moments(arithmetic); ++k) {
    for (float& value : values) {
      value = hard_or_ordinary(random, hard_in_eight);
      // One NaN makes all of its block NaN, which would test little.
      if (has_scales(buffers.of.codec) && !std::isfinite(value) && random() % 64 != 0)
        value = 1e-3f;
      if (is_square(arithmetic, k) && random() % 16 != 0) value = std::fabs(value);
    }
    encode_moment(buffers.stored(k), random(), values.data(), elements);
  }
}

inline UpdateStep ordinary_step(OptimizerRule rule = OptimizerRule::kAdamW, std::uint64_t t = 7,
                                double gradient_factor = 0.37) {
  const Hyperparameters values{.momentum = 0.9f, .dampening = 0.1f, .nesterov = t % 2 == 1};
  UpdateStep step = make_update_step(rule, values, 1e-3, t, gradient_factor);
  step.random_key = random_key(kSeed, 3, t);
  return step;
}

// Constants at the ends of what a step may have.
inline std::array<UpdateStep, 6> hard_steps(OptimizerRule rule) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  std::array<UpdateStep, 6> steps{ordinary_step(rule, 1),      ordinary_step(rule, 1000000, 1.0),
                                  ordinary_step(rule, 3, 0.0), ordinary_step(rule, 3, -1e30),
                                  ordinary_step(rule, 2, nan), ordinary_step(rule, 2, infinity)};
  steps[0].eps = 0.0f;
  steps[1].eps = 1e-40f;
  steps[1].l2 = 0.3f;
  steps[2].step_size = 1e-44f;
  return steps;
}

// Numbers from 2^exponent to twice that, of both signs; sums of squares have one.
inline void fill_at_magnitude(UpdateBuffers& buffers, std::mt19937_64& random, int exponent) {
  const UpdateCase& of = buffers.of;
  std::vector<float> values(of.elements);
  const auto number = [&] {
    const float share = static_cast<float>(random() >> 40) * 0x1p-24f;
    return std::ldexp(random() % 2 == 0 ? share + 1 : -share - 1, exponent);
  };
  for (std::uint64_t i = 0; i < of.elements; ++i) {
    buffers.set_master(i, number());
    buffers.set_gradient(i, number());
  }
  for (std::uint32_t k = 0; k < moments(arithmetic_of(of.rule)); ++k) {
    for (float& value : values)
      value = is_square(arithmetic_of(of.rule), k) ? std::fabs(number()) : number();
    encode_moment(buffers.stored(k), random(), values.data(), of.elements);
  }
}

// All that an update may be of, each with `visit`.
template <class Visit>
void for_every_case(Visit visit) {
  for (const OptimizerRule rule : kAllRules) {
    for (const MasterKind kind : kAllKinds) {
      for (const DType dtype : kAllDTypes) {
        for (const MomentCodec codec : kAllCodecs) {
          if (moments(arithmetic_of(rule)) == 0 && codec != MomentCodec::kF32) continue;
          visit(UpdateCase{.rule = rule, .kind = kind, .gradient_dtype = dtype, .codec = codec});
        }
      }
    }
  }
}
}  // namespace headrace::optimizer_cpu
