// SPDX-License-Identifier: Apache-2.0
// options.cpp: the command line's grammar and the checks that need nothing but it.
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <string_view>

#include "failures.hpp"
#include "headrace/version.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

constexpr const char* kDescription =
    "Trains a byte-level GPT on real text, its parameters and optimizer state where the settings "
    "put them\n"
    "(device, host memory, NVMe), bit for bit the same wherever they are.\n";
constexpr const char* kFooter =
    "\nExamples:\n"
    "  train_gpt --steps 50\n"
    "  train_gpt --config offload.json --set headrace.host_budget_bytes=1GiB --json report.json\n"
    "  train_gpt --set zero_optimization.offload_optimizer.device=nvme \\\n"
    "            --set zero_optimization.offload_optimizer.nvme_path=/mnt/nvme --save trained\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 128 + n ended by signal "
    "n.\n";

struct RawOptions {
  Options options;
  std::optional<double> least;
  std::optional<std::uint64_t> warmup;
  std::optional<std::uint32_t> accumulation;
  bool no_progress = false;
};

void add_model_options(CLI::App& app, Options& o) {
  const char* group = "Model";
  app.add_option("--layers", o.shape.layers, "Transformer blocks")
      ->group(group)
      ->capture_default_str();
  app.add_option("--hidden", o.shape.hidden, "Width, a multiple of --heads")
      ->group(group)
      ->capture_default_str();
  app.add_option("--heads", o.shape.heads, "Attention heads")->group(group)->capture_default_str();
  app.add_option("--seq", o.shape.sequence, "Bytes of context")
      ->group(group)
      ->capture_default_str();
}

void add_training_options(CLI::App& app, RawOptions& raw) {
  const char* group = "Training";
  Options& o = raw.options;
  app.add_option("--batch", o.batch, "Sequences per micro-batch")
      ->group(group)
      ->capture_default_str();
  app.add_option("--steps", o.steps, "Optimizer steps")->group(group)->capture_default_str();
  app.add_option("--accumulation", raw.accumulation,
                 "Micro-batches per step: short for --set gradient_accumulation_steps=N")
      ->group(group);
  app.add_option("--lr", o.learning_rate, "Learning rate after the warm-up")
      ->group(group)
      ->capture_default_str();
  app.add_option("--min-lr", raw.least, "Learning rate of the last step [a tenth of --lr]")
      ->group(group);
  app.add_option("--warmup", raw.warmup, "Steps of warm-up [a tenth of --steps]")->group(group);
  app.add_option("--weight-decay", o.weight_decay, "AdamW's, not applied to norms and biases")
      ->group(group)
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Of initial weights and batch order")
      ->group(group)
      ->capture_default_str();
  app.add_option("--eval-batches", o.eval_batches, "Held-out batches at the end; 0: none")
      ->group(group)
      ->capture_default_str();
}

void add_placement_options(CLI::App& app, RawOptions& raw) {
  const char* group = "Placement";
  Options& o = raw.options;
  app.add_option("--config", o.config, "Settings file (DeepSpeed's names, ours under \"headrace\")")
      ->group(group);
  app.add_option("--set", o.overrides, "One setting over the file's: a.b=value; repeatable")
      ->group(group)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--threads", o.threads, "torch's threads; 0: as many as torch takes")
      ->group(group)
      ->capture_default_str();
  app.add_flag("--plain", o.plain,
               "The same training by LibTorch alone, all in memory: the reference for memory")
      ->group(group);
}

void add_file_options(CLI::App& app, RawOptions& raw) {
  const char* group = "Files";
  Options& o = raw.options;
  app.add_option("--text", o.text, "Text file, or folder of text files [Python's standard library]")
      ->group(group);
  app.add_option("--init", o.init_folder, "Folder to read model.safetensors from")->group(group);
  app.add_option("--save", o.save_folder, "Folder to write model.safetensors to; made if missing")
      ->group(group);
  app.add_option("--json", o.json, "File for the report; - is stdout")->group(group);
  app.add_flag("--no-progress", raw.no_progress, "No progress bar and no lines per step")
      ->group(group);
}

void require(bool holds, const std::string& what) {
  if (!holds) fail(Code::kInvalidArgument, what);
}

void check_options(const Options& o) {
  check_shape(o.shape);
  const std::uint64_t windows = std::uint64_t{o.batch} * (std::uint64_t{o.shape.sequence} + 1);
  require(o.batch >= 1 && windows <= (1u << 30),
          "--batch " + std::to_string(o.batch) + " with --seq " + std::to_string(o.shape.sequence) +
              " is out of range; no batch can be made. Give a batch of at least 1 with at most "
              "2^30 bytes in it.");
  require(o.steps <= 1'000'000'000,
          "--steps " + std::to_string(o.steps) +
              " is out of range; the run was not started. Give 0 to 1000000000.");
  require(
      std::isfinite(o.learning_rate) && o.learning_rate >= 0,
      "--lr is not a finite number of 0 or more; no step can be made. Give one, e.g. --lr 0.001.");
  require(o.least_learning_rate >= 0 && o.least_learning_rate <= o.learning_rate,
          "--min-lr is not between 0 and --lr; the schedule would rise. Give a smaller --min-lr.");
  require(o.warmup_steps <= o.steps, "--warmup " + std::to_string(o.warmup_steps) +
                                         " is longer than --steps " + std::to_string(o.steps) +
                                         "; the learning rate would never be reached. "
                                         "Give a shorter warm-up.");
  require(std::isfinite(o.weight_decay) && o.weight_decay >= 0,
          "--weight-decay is not a finite number of 0 or more; no step can be made. Give one, e.g. "
          "0.1.");
  require(!o.plain || o.save_folder.empty(),
          "--plain and --save exclude each other; nothing would be saved. Leave one of them out.");
}

Options finish(RawOptions raw) {
  Options o = std::move(raw.options);
  o.least_learning_rate = raw.least.value_or(o.learning_rate / 10);
  o.warmup_steps = raw.warmup.value_or((o.steps + 9) / 10);
  o.progress = !raw.no_progress;
  if (raw.accumulation)
    o.overrides.push_back("gradient_accumulation_steps=" + std::to_string(*raw.accumulation));
  check_options(o);
  return o;
}

// Found even on a command line that does not parse, since its failure is reported there.
std::string json_target(int argc, const char* const* argv) {
  constexpr std::string_view kOption = "--json";
  std::string target;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == kOption && i + 1 < argc) target = argv[i + 1];
    if (word.starts_with("--json=")) target = word.substr(kOption.size() + 1);
  }
  return target;
}
}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  RawOptions raw;
  CLI::App app(kDescription, "train_gpt");
  app.footer(kFooter);
  // A wrapper may append its user's words to its own: the last one holds.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_help_flag("-h,--help", "This text");
  app.set_version_flag("--version", std::string("train_gpt (headrace) ") + headrace::version());
  add_model_options(app, raw.options);
  add_training_options(app, raw);
  add_placement_options(app, raw);
  add_file_options(app, raw);
  ParsedOptions result;
  result.json = json_target(argc, argv);
  try {
    app.parse(argc, argv);
    result.options = finish(std::move(raw));
  } catch (const CLI::CallForHelp&) {
    result.text = app.help();
  } catch (const CLI::CallForVersion& version) {
    result.text = version.what() + std::string("\n");
  } catch (const CLI::ParseError& error) {
    result.text = std::string(error.what()) + "; the run was not started. See train_gpt --help.";
    result.exit_code = kRefused;
  } catch (const headrace::Error& error) {
    result.text = error.what();
    result.exit_code = kRefused;
  }
  return result;
}
}  // namespace train_gpt
