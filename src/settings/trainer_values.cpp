// SPDX-License-Identifier: Apache-2.0
// Values for a trainer from Settings: the constants of the rule, the dtype, the batch.
#include <algorithm>
#include <limits>
#include <string>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"

namespace headrace {
namespace {
// DeepSpeed's own defaults, which are torch's but for the weight decay; of AdamW it has torch's too
// where it takes torch's optimizer.
Hyperparameters deepspeed_defaults(OptimizerRule rule, bool torch_adam) {
  Hyperparameters values;
  values.weight_decay = torch_adam && rule == OptimizerRule::kAdamW ? 0.01f : 0;
  if (rule == OptimizerRule::kAdagrad) values.eps = 1e-10f;
  return values;
}

void take(const std::optional<double>& given, float& value) {
  if (given) value = static_cast<float>(*given);
}
void take(const std::optional<bool>& given, bool& value) { value = given.value_or(value); }

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kSettings, text); }

struct Batch {
  std::uint64_t whole, micro, accumulation, ranks;

  std::string words() const {
    return "train_micro_batch_size_per_gpu " + std::to_string(micro) +
           " x gradient_accumulation_steps " + std::to_string(accumulation) + " x " +
           std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  }
};

// whole / (one * ranks), where it comes out.
std::uint32_t share_of(std::uint64_t whole, std::uint64_t one, const char* one_name,
                       std::uint64_t ranks) {
  if (whole % (one * ranks) != 0 || whole == 0) {
    refuse("train_batch_size " + std::to_string(whole) + " is not a multiple of " + one_name + " " +
           std::to_string(one) + " x " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
           "; change one of them, or leave one out");
  }
  return static_cast<std::uint32_t>(whole / (one * ranks));
}
}  // namespace

Hyperparameters OptimizerSection::hyperparameters(OptimizerRule rule,
                                                  const Hyperparameters& defaults) const {
  Hyperparameters values =
      type.empty() ? defaults : deepspeed_defaults(rule, torch_adam.value_or(false));
  if (betas) {
    values.beta1 = static_cast<float>((*betas)[0]);
    values.beta2 = static_cast<float>((*betas)[1]);
  }
  take(eps, values.eps);
  take(weight_decay, values.weight_decay);
  take(momentum, values.momentum);
  take(dampening, values.dampening);
  take(lr_decay, values.learning_rate_decay);
  take(bias_correction, values.bias_correction);
  take(nesterov, values.nesterov);
  take(maximize, values.maximize);
  return values;
}

double OptimizerSection::learning_rate(OptimizerRule rule, double otherwise) const {
  if (lr) return *lr;
  if (type.empty()) return otherwise;
  return rule == OptimizerRule::kAdagrad ? 1e-2 : 1e-3;
}

std::optional<DType> Settings::parameter_dtype() const {
  if (fp16) return DType::kF16;
  if (bf16.value_or(false)) return DType::kBf16;
  const bool fp16_is_open = std::ranges::find(open, "fp16.enabled") != open.end();
  return bf16 && !fp16_is_open ? std::optional(DType::kF32) : std::nullopt;
}

void Settings::resolve_batch(std::uint32_t world_size, std::optional<std::uint32_t> micro_batch) {
  if (world_size == 0) refuse("world_size is 0; it is the number of ranks, at least 1");
  const std::uint64_t ranks = world_size;
  std::optional<std::uint32_t>& micro = train_micro_batch_size_per_gpu;
  if (!train_batch_size) {
    if (!micro) micro = micro_batch;
    if (gradient_accumulation_steps == 0) gradient_accumulation_steps = 1;
    if (!micro) return;
    const std::uint64_t whole = ranks * *micro * gradient_accumulation_steps;
    if (whole > std::numeric_limits<std::uint32_t>::max()) {
      refuse(Batch{0, *micro, gradient_accumulation_steps, ranks}.words() +
             " is more than 2^32 sequences; make one of them smaller");
    }
    train_batch_size = static_cast<std::uint32_t>(whole);
    return;
  }
  const std::uint64_t whole = *train_batch_size;
  if (!micro) {
    if (gradient_accumulation_steps == 0) gradient_accumulation_steps = 1;
    micro = share_of(whole, gradient_accumulation_steps, "gradient_accumulation_steps", ranks);
  }
  if (gradient_accumulation_steps == 0) {
    gradient_accumulation_steps = share_of(whole, *micro, "train_micro_batch_size_per_gpu", ranks);
  }
  const Batch batch{whole, *micro, gradient_accumulation_steps, ranks};
  if (batch.micro * batch.accumulation * batch.ranks != whole) {
    refuse("train_batch_size " + std::to_string(whole) + " is not " + batch.words() + " = " +
           std::to_string(batch.micro * batch.accumulation * batch.ranks) +
           "; leave one of the three out and it follows from the others");
  }
}
}  // namespace headrace
