// SPDX-License-Identifier: Apache-2.0
// options.hpp: the command line.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpt_shape.hpp"
#include "headrace/launch.hpp"

namespace train_gpt {
// How LibTorch computes here.
struct TorchFacts {
  std::string device = "cpu";  // its name
  std::uint32_t threads = 1;
  bool products_in_f32 = false;  // of weights in the dtype that it was asked about
  std::string products_reason;   // why: "the CPU has amx_bf16"
};

// The dtype in which products of 16-bit weights are computed. kAuto: on a CPU f32, except for bf16
// weights if the CPU is fast in bf16 (bf16_support.hpp); on a GPU the weights' own dtype.
enum class Products { kAuto, kBf16, kF32 };

// Where settings name no others; a rule takes those that it has.
inline constexpr double kBeta1 = 0.9;
inline constexpr double kBeta2 = 0.95;
inline constexpr double kEps = 1e-8;
inline constexpr double kMomentum = 0.9;  // of sgd_momentum

// Of a micro-batch: sequences and a target each.
inline constexpr std::uint64_t kMostWindowBytes = 1 << 30;

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
  std::uint64_t save_every = 0;  // steps from one checkpoint to the next; 0: none
  bool save_in_background = false;
  std::uint64_t keep = 0;  // the newest checkpoints that stay; 0: all
  bool overwrite = false;  // a model.safetensors or a checkpoint that is there
  std::string init_folder;
  std::string load_folder;
  std::string store;  // name; empty: as the settings say
  std::string json;   // file, "-" for stdout, empty: none
  std::string trace;  // file, empty: none

  std::string device = "cpu";  // or "cuda", "cuda:1"
  std::uint32_t threads = 0;   // 0: torch decides
  headrace::LaunchChoice ranks = headrace::LaunchChoice::kAuto;
  std::uint32_t rank_deadline_seconds = 600;
  bool plain = false;
  Products products = Products::kAuto;
  bool checkpointing = false;  // blocks keep no activations from forward to backward
  bool progress = true;

  // The options given on the command line, which override the settings.
  struct Given {
    bool batch = false, learning_rate = false, weight_decay = false;
    bool schedule = false, least_learning_rate = false;  // --warmup or --min-lr; --min-lr
  } given = {};
};

// The result of parsing: options to run with, or words to print and an exit code.
struct ParsedOptions {
  std::optional<Options> options;
  std::string text;  // of a line that is obeyed: what is to be noted about it, empty: nothing
  int exit_code = 0;
  std::string json;  // where a failure is to be reported, as in Options
};
// "0.001", "1e-08".
std::string words_of(double value);
std::string exact_words_of(double value);  // reads back as the same value
ParsedOptions parse_options(int argc, const char* const* argv);
}  // namespace train_gpt
