// SPDX-License-Identifier: Apache-2.0
// recipe.hpp: the hyperparameters of a run: from the command line, else the settings, else our
// defaults.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/optimizer.hpp"
#include "headrace/schedule.hpp"
#include "headrace/settings.hpp"
#include "headrace/tensor.hpp"
#include "options.hpp"
#include "schedule.hpp"

namespace train_gpt {
struct Recipe {
  headrace::DType dtype = headrace::DType::kBf16;  // of all weights
  std::uint32_t batch = 8;                         // sequences per micro-batch
  std::uint32_t accumulation = 1;                  // micro-batches of a rank
  std::uint32_t ranks = 1;
  float max_norm = 0;
  double learning_rate = 1e-3;                        // the optimizer's own
  headrace::Scheduler scheduler;                      // of the settings
  std::optional<Schedule> schedule;                   // ours, where they ask for none
  headrace::Hyperparameters decayed, kept;            // of matrices; of norms and biases, undecayed
  std::optional<headrace::LossScaling> loss_scaling;  // of fp16

  // For the next update.
  headrace::StepRates rates(std::uint64_t updates) const;
  // "lr 0.001, warmup 10, ..." for people.
  std::string words() const;
};

// "a.b=value": the command line's, for what settings leave "auto" (--help lists them).
std::vector<std::string> values_for_auto(const Options& options);
// Fills in what `settings` leave open of the batch.
// Errors:  kSettings where options and settings contradict each other.
Recipe make_recipe(const Options& options, headrace::Settings& settings, std::uint32_t ranks);
}  // namespace train_gpt
