// SPDX-License-Identifier: Apache-2.0
// options.hpp: the command line.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpt_shape.hpp"
#include "schedule.hpp"

namespace train_gpt {
// How LibTorch computes here.
struct TorchFacts {
  std::uint32_t threads = 1;
  bool computes_in_f32 = false;  // products of bf16: linear_in_f32.hpp
};

// The same in every run; a rule takes those that it has.
inline constexpr double kBeta1 = 0.9;
inline constexpr double kBeta2 = 0.95;
inline constexpr double kEps = 1e-8;
inline constexpr double kMomentum = 0.9;  // of sgd_momentum

struct Options {
  GptShape shape;
  std::uint32_t batch = 8;
  std::uint64_t steps = 100;
  double learning_rate = 1e-3;
  double least_learning_rate = 1e-4;
  std::uint64_t warmup_steps = 10;
  double weight_decay = 0.1;
  std::uint64_t seed = 1;
  std::uint32_t eval_batches = 8;

  std::string text;                    // empty: the Python standard library
  std::string config;                  // settings file, empty: none
  std::vector<std::string> overrides;  // "a.b=value"
  std::string save_folder;
  bool overwrite = false;  // a model.safetensors that is there
  std::string init_folder;
  std::string json;   // file, "-" for stdout, empty: none
  std::string trace;  // file, empty: none

  std::uint32_t threads = 0;  // 0: torch decides
  bool plain = false;
  bool checkpointing = false;  // blocks keep no activations from forward to backward
  bool progress = true;

  Schedule schedule() const { return {learning_rate, least_learning_rate, warmup_steps, steps}; }
};

// What parsing gave: options to run with, or words to print and an exit code.
struct ParsedOptions {
  std::optional<Options> options;
  std::string text;  // of a line that is obeyed: what is to be noted about it, empty: nothing
  int exit_code = 0;
  std::string json;  // where a failure is to be reported, as in Options
};
// What training goes by: "--lr 0.001, --min-lr 0.0001, ..., betas 0.9 0.95, eps 1e-08,
// momentum 0.9".
std::string training_words(const Options& options);
ParsedOptions parse_options(int argc, const char* const* argv);
}  // namespace train_gpt
