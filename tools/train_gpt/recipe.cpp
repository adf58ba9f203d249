// SPDX-License-Identifier: Apache-2.0
#include "recipe.hpp"

#include "failures.hpp"

namespace train_gpt {
namespace {
using headrace::Hyperparameters;
using headrace::OptimizerRule;

Hyperparameters our_constants(const Options& options, OptimizerRule rule) {
  Hyperparameters values = {.beta1 = static_cast<float>(kBeta1),
                            .beta2 = static_cast<float>(kBeta2),
                            .eps = static_cast<float>(kEps),
                            .weight_decay = static_cast<float>(options.weight_decay)};
  // The rule sgd keeps none, and is refused with one.
  if (rule == OptimizerRule::kSgdMomentum) values.momentum = static_cast<float>(kMomentum);
  return values;
}

void take_batch(const Options& options, headrace::Settings& settings, Recipe& recipe) {
  settings.resolve_batch(recipe.ranks, options.batch);
  recipe.batch = settings.train_micro_batch_size_per_gpu.value_or(options.batch);
  recipe.accumulation = settings.gradient_accumulation_steps;
  const std::uint64_t windows =
      std::uint64_t{recipe.batch} * (std::uint64_t{options.shape.sequence} + 1);
  if (windows <= kMostWindowBytes) return;
  fail(headrace::Code::kSettings,
       "train_micro_batch_size_per_gpu " + std::to_string(recipe.batch) + " with --seq " +
           std::to_string(options.shape.sequence) +
           " is more than 2^30 bytes; the run was not started. Give a smaller one");
}

// A scheduler that does not start from the optimizer's rate would leave --lr without effect.
void refuse_rate_of_its_own(const Options& options, const headrace::Scheduler& scheduler) {
  using headrace::SchedulerType;
  const double lr = options.learning_rate;
  const bool follows =
      scheduler.type == SchedulerType::kWarmupCosineLR ||
      (scheduler.type == SchedulerType::kWarmupLR && scheduler.warmup_max_lr.value_or(lr) == lr) ||
      (scheduler.type == SchedulerType::kWarmupDecayLR && scheduler.warmup_max_lr == lr);
  if (follows || !options.given.learning_rate) return;
  fail(headrace::Code::kSettings,
       "--lr beside scheduler.type \"" + std::string(name_of(scheduler.type)) +
           "\", which has rates of its own in scheduler.params: --lr would be ignored, so the run "
           "was not started. Leave it out, or set the scheduler's.");
}

// OneCycle's momentum grows without end behind the cycle.
void refuse_beta_out_of_range(const Options& options, const Recipe& recipe) {
  for (std::uint64_t update = 0; update < options.steps; ++update) {
    const double beta1 = recipe.rates(update).beta1.value_or(0);
    if (beta1 < 1) continue;
    fail(headrace::Code::kSettings,
         "scheduler.params.decay_mom_rate raises beta1 to " + words_of(beta1) + " in step " +
             std::to_string(update + 1) + " of " + std::to_string(options.steps) +
             ", and it has to stay below 1; the run was not started. Lower it, or --steps.");
  }
}

void take_rates(const Options& options, const headrace::Settings& settings, Recipe& recipe) {
  const headrace::OptimizerSection& section = settings.optimizer_section;
  recipe.learning_rate = options.given.learning_rate
                             ? options.learning_rate
                             : section.learning_rate(settings.optimizer, options.learning_rate);
  recipe.scheduler = settings.scheduler;
  if (settings.scheduler.type != headrace::SchedulerType::kNone) {
    refuse_rate_of_its_own(options, settings.scheduler);
    refuse_beta_out_of_range(options, recipe);
    if (!options.given.schedule) return;
    fail(headrace::Code::kSettings,
         "--warmup or --min-lr beside scheduler.type \"" +
             std::string(name_of(settings.scheduler.type)) +
             "\" in the settings: one of them would be ignored, so the run was not started. Leave "
             "the option out, or add --set scheduler.type=none.");
  }
  // As in DeepSpeed a rate without a scheduler stays.
  if (!section.type.empty() && !options.given.schedule) return;
  const double least =
      options.given.least_learning_rate ? options.least_learning_rate : recipe.learning_rate / 10;
  recipe.schedule = Schedule{recipe.learning_rate, least, options.warmup_steps, options.steps};
}
}  // namespace

headrace::StepRates Recipe::rates(std::uint64_t updates) const {
  if (schedule) return {schedule->learning_rate(updates + 1)};
  return scheduler.rates(updates, learning_rate);
}

std::string Recipe::words() const {
  std::string text = std::string(name_of(dtype)) + " weights, batch " + std::to_string(batch);
  if (accumulation > 1) text += " x " + std::to_string(accumulation);
  if (ranks > 1) text += " x " + std::to_string(ranks) + " ranks";
  text += ", lr " + words_of(learning_rate);
  if (schedule) {
    text += " (warm-up " + std::to_string(schedule->warmup_steps) + ", down to " +
            words_of(schedule->least) + ")";
  } else if (scheduler.type != headrace::SchedulerType::kNone) {
    text += std::string(" (") + name_of(scheduler.type) + ")";
  }
  if (max_norm > 0) text += ", clipped at " + words_of(max_norm);
  text += ", betas " + words_of(decayed.beta1) + " " + words_of(decayed.beta2) + ", eps " +
          words_of(decayed.eps) + ", weight decay " + words_of(decayed.weight_decay);
  if (decayed.momentum != 0) text += ", momentum " + words_of(decayed.momentum);
  return text;
}

std::vector<std::string> values_for_auto(const Options& o) {
  const std::string rate = exact_words_of(o.learning_rate);
  const std::string warmup = std::to_string(o.warmup_steps);
  return {"bf16.enabled=true",
          "fp16.enabled=false",
          "amp.enabled=false",
          "gradient_clipping=1.0",
          "optimizer.params.lr=" + rate,
          "optimizer.params.betas=[" + exact_words_of(kBeta1) + "," + exact_words_of(kBeta2) + "]",
          "optimizer.params.eps=" + exact_words_of(kEps),
          "optimizer.params.weight_decay=" + exact_words_of(o.weight_decay),
          "scheduler.params.warmup_min_lr=0",
          "scheduler.params.warmup_max_lr=" + rate,
          "scheduler.params.warmup_num_steps=" + (o.warmup_steps > 0 ? warmup : "1"),
          "scheduler.params.total_num_steps=" + std::to_string(o.steps)};
}

Recipe make_recipe(const Options& options, headrace::Settings& settings, std::uint32_t ranks) {
  Recipe recipe;
  recipe.ranks = ranks;
  recipe.dtype = settings.parameter_dtype().value_or(headrace::DType::kBf16);
  recipe.max_norm = static_cast<float>(settings.gradient_clipping);
  take_batch(options, settings, recipe);
  take_rates(options, settings, recipe);
  recipe.decayed = settings.optimizer_section.hyperparameters(
      settings.optimizer, our_constants(options, settings.optimizer));
  if (options.given.weight_decay)
    recipe.decayed.weight_decay = static_cast<float>(options.weight_decay);
  recipe.kept = recipe.decayed;
  recipe.kept.weight_decay = 0;
  if (settings.fp16) recipe.loss_scaling = settings.loss_scaling;
  return recipe;
}
}  // namespace train_gpt
