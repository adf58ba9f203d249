// SPDX-License-Identifier: Apache-2.0
// headrace/optimizer.hpp: optimizer rules, their constants, and the options of a step.
#pragma once
#include <cstdint>

namespace headrace {
// The rules are those of torch.optim (Lion: those of its paper). p is the master, g the gradient,
// and t the number of this parameter's updates, including this one:
//   kAdamW        Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2
//     p -= lr * weight_decay * p
//     m  = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//     p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   kAdam         Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1
//     as kAdamW, but with g += weight_decay * p as the first line
//   kAdagrad      Duchi, Hazan and Singer 2011
//     g += weight_decay * p;  v += g^2
//     p -= lr / (1 + (t - 1) learning_rate_decay) * g / (sqrt(v) + eps)
//   kLion         Chen et al. 2023 (arXiv 2302.06675), algorithm 2
//     p -= lr * (sign(beta1 m + (1 - beta1) g) + weight_decay * p);  m = beta2 m + (1 - beta2) g
//   kSgd          g += weight_decay * p;  p -= lr * g
//   kSgdMomentum  Sutskever et al. 2013, equations 3 and 4
//     g += weight_decay * p;  m = momentum m + (1 - dampening) g (m = g in the first update)
//     p -= lr * (nesterov ? g + momentum m : m)
enum class OptimizerRule : std::uint8_t { kAdamW, kAdam, kAdagrad, kLion, kSgd, kSgdMomentum };
constexpr const char* name_of(OptimizerRule rule) noexcept {
  constexpr const char* kNames[] = {"adamw", "adam", "adagrad", "lion", "sgd", "sgd_momentum"};
  return kNames[static_cast<std::uint8_t>(rule)];
}
// How an engine stores Adam's two moments, Adagrad's sum of squares, and the momentum of Lion and
// SGD between steps. The arithmetic is always f32.
//   kF32     as computed
//   kBf16    2 bytes, stochastically rounded
//   kBlock8  8 bits with a shared power of two per 256 elements, stochastically rounded
// The random bits for rounding depend on (seed, parameter, element, step) and on nothing else.
enum class MomentCodec : std::uint8_t { kF32, kBf16, kBlock8 };
constexpr const char* name_of(MomentCodec codec) noexcept {
  switch (codec) {
    case MomentCodec::kF32:
      return "f32";
    case MomentCodec::kBf16:
      return "bf16";
    case MomentCodec::kBlock8:
      break;
  }
  return "8bit";
}

// The instruction set for updates on the CPU. kBest: the best one that this CPU has. HEADRACE_SIMD
// overrides this choice. The choice changes no result.
enum class Simd : std::uint8_t { kBest, kScalar, kAvx2, kAvx512 };
constexpr const char* name_of(Simd simd) noexcept {
  constexpr const char* kNames[] = {"best", "scalar", "avx2", "avx512"};
  return kNames[static_cast<std::uint8_t>(simd)];
}

// True if weight decay is a factor on p, false if it is added to g.
constexpr bool decays_decoupled(OptimizerRule rule) noexcept {
  return rule == OptimizerRule::kAdamW || rule == OptimizerRule::kLion;
}

// One set serves any number of parameters. A constant that the rule does not use has no effect;
// only a momentum with kSgd is refused. The defaults are those of torch's AdamW, whatever the rule.
struct Hyperparameters {
  float learning_rate_scale = 1.0f;  // multiplies StepOptions::learning_rate
  float beta1 = 0.9f;
  float beta2 = 0.999f;        // Lion's authors use 0.99
  float eps = 1e-8f;           // torch's Adagrad: 1e-10
  float weight_decay = 0.01f;  // torch's Adam, Adagrad and SGD: 0
  float momentum = 0.0f;       // kSgdMomentum needs one, such as 0.9; with 0 it computes kSgd
  float dampening = 0.0f;
  float learning_rate_decay = 0.0f;
  bool nesterov = false;
  bool bias_correction = true;  // Adam's divisions by 1 - beta^t
  bool maximize = false;
};

struct StepOptions {
  float learning_rate = 1e-3f;
  // Multiplies every gradient: 1 / (accumulation * world_size) gives the average.
  float gradient_scale = 1.0f;
  // Global-norm clipping; 0 is off. Factor: min(1, max_norm / (norm + 1e-6)).
  float max_norm = 0.0f;
  friend bool operator==(const StepOptions&, const StepOptions&) = default;
};
}  // namespace headrace
