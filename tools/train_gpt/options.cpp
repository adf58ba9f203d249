// SPDX-License-Identifier: Apache-2.0
// options.cpp: the command line's grammar and the checks that need nothing but it.
#include "options.hpp"

#include <charconv>
#include <map>
#include <string_view>

#include "command_line/command_line.hpp"
#include "failures.hpp"
#include "headrace/version.hpp"

namespace train_gpt {
std::string words_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string exact_words_of(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

namespace {
using headrace::command_line::add_choice;
using headrace::command_line::add_number;
using headrace::command_line::add_real;
using headrace::command_line::add_repeated;
using headrace::command_line::Fault;

constexpr const char* kDescription =
    "Trains a byte-level GPT on real text. The settings say where its parameters and optimizer "
    "state live\n"
    "(device, host memory, NVMe). Results are the same, bit for bit, under every placement.\n";
constexpr const char* kFooter =
    "\nExamples:\n"
    "  train_gpt --steps 50\n"
    "  train_gpt --config offload.json --set headrace.host_budget_bytes=1GiB --json report.json\n"
    "  train_gpt --set zero_optimization.offload_optimizer.device=nvme \\\n"
    "            --set zero_optimization.offload_optimizer.nvme_path=/mnt/nvme --save trained\n"
    "  train_gpt --save trained --save-every 50     and, if that was interrupted:\n"
    "  train_gpt --save trained --save-every 50 --load trained\n"
    "\nIf an option or setting is given twice, the last one wins. Options override settings.\n"
    "If a settings file has an optimizer, its constants apply, and the learning rate is\n"
    "constant unless the file has a scheduler. A file that enables neither bf16 nor fp16\n"
    "trains in f32, as in DeepSpeed. Without a file, weights are bf16.\n"
    "\"auto\" means: bf16.enabled true (false beside fp16), gradient_clipping 1.0, lr and\n"
    "weight_decay as above, a warm-up from 0 to lr in --warmup steps, and total_num_steps\n"
    "as many as --steps.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 3 no such "
    "--device here,\n128 + n ended by signal n.\n";

constexpr const char* kConsequence = "the run was not started";
constexpr double kLargest = 1e38;  // f32 can hold it
constexpr const char* kAccumulationKey = "gradient_accumulation_steps=";

struct RawOptions {
  Options options;
  std::optional<double> least;
  std::optional<std::uint64_t> warmup;
  std::uint32_t accumulation = 1;
  bool no_progress = false;
};

std::string fixed_words() {
  return "betas " + words_of(kBeta1) + " " + words_of(kBeta2) + ", eps " + words_of(kEps) +
         ", momentum " + words_of(kMomentum);
}

void add_model_options(CLI::App& app, GptShape& shape) {
  const auto add = [&](const char* name, std::uint32_t& to, std::uint64_t most, const char* text) {
    const std::string value = std::to_string(to);
    add_number(app, name, to, {1, most}, text)->group("Model")->default_str(value);
  };
  add("--layers", shape.layers, kMostLayers, "Transformer blocks");
  add("--hidden", shape.hidden, kMostHidden, "Width, a multiple of --heads");
  add("--heads", shape.heads, kMostHidden, "Attention heads");
  add("--seq", shape.sequence, kMostSequence, "Bytes of context");
}

void add_training_options(CLI::App& app, RawOptions& raw) {
  const char* group = "Training";
  Options& o = raw.options;
  constexpr std::uint64_t kMostSteps = 1'000'000'000;
  add_number(app, "--batch", o.batch, {1, 1u << 29}, "Sequences per micro-batch")
      ->group(group)
      ->default_str(std::to_string(o.batch));
  add_number(app, "--steps", o.steps, {0, kMostSteps}, "Optimizer steps")
      ->group(group)
      ->default_str(std::to_string(o.steps));
  add_number(app, "--accumulation", raw.accumulation, {1, 1u << 30},
             "Micro-batches per step: short for --set gradient_accumulation_steps=N")
      ->group(group);
  add_real(app, "--lr", o.learning_rate, {0, kLargest}, "Learning rate after the warm-up")
      ->group(group)
      ->default_str(words_of(o.learning_rate));
  add_real(app, "--min-lr", raw.least, {0, kLargest},
           "Learning rate of the last step [a tenth of --lr]")
      ->group(group);
  add_number(app, "--warmup", raw.warmup, {0, kMostSteps}, "Steps of warm-up [a tenth of --steps]")
      ->group(group);
  add_real(app, "--weight-decay", o.weight_decay, {0, kLargest},
           "Not applied to norms and biases. Other constants, unless the settings give them: " +
               fixed_words())
      ->group(group)
      ->default_str(words_of(o.weight_decay));
  add_number(app, "--seed", o.seed, {0, ~std::uint64_t{0}},
             "Seed of initial weights and batch order")
      ->group(group)
      ->default_str(std::to_string(o.seed));
  add_number(app, "--eval-batches", o.eval_batches, {0, 1'000'000},
             "Held-out batches at the end; 0: none")
      ->group(group)
      ->default_str(std::to_string(o.eval_batches));
}

void add_placement_options(CLI::App& app, RawOptions& raw) {
  const char* group = "Placement";
  Options& o = raw.options;
  app.add_option("--config", o.config, "Settings file (DeepSpeed's names, ours under \"headrace\")")
      ->group(group);
  add_repeated(app, "--set", o.overrides, "One setting, overrides the file: a.b=value; repeatable")
      ->group(group);
  app.add_option("--device", o.device,
                 "Where torch computes: cpu, cuda, or cuda:N. Its memory is the placement's device")
      ->group(group)
      ->default_str(o.device);
  add_number(app, "--threads", o.threads, {0, 4096}, "torch's threads; 0: as many as torch takes")
      ->group(group)
      ->default_str(std::to_string(o.threads));
  add_choice(app, "--products", o.products,
             {{"auto", Products::kAuto}, {"bf16", Products::kBf16}, {"f32", Products::kF32}},
             "Format of products of 16-bit weights: bf16, f32, or auto. On a CPU, auto takes "
             "bf16 only if it is faster: with amx_bf16, or AMD's avx512_bf16")
      ->group(group)
      ->default_str("auto");
  app.add_flag(
         "--plain", o.plain,
         "Train with LibTorch alone, all in memory, as a reference for memory. Prints no hashes "
         "and saves nothing")
      ->group(group);
  app.add_flag(
         "--checkpointing", o.checkpointing,
         "Activation checkpointing: keep only the input of each block, and run the block again "
         "in backward. Less memory, one more forward pass, the same bits")
      ->group(group);
}

void add_rank_options(CLI::App& app, RawOptions& raw) {
  const char* group = "Ranks";
  using headrace::LaunchChoice;
  add_choice(
      app, "--ranks", raw.options.ranks,
      {{"auto", LaunchChoice::kAuto},
       {"none", LaunchChoice::kNone},
       {"mpi", LaunchChoice::kMpi},
       {"torch", LaunchChoice::kTorch}},
      "Whose variables say which rank this is: mpi (mpirun, srun), torch (torchrun, or RANK, "
      "WORLD_SIZE, MASTER_ADDR and MASTER_PORT), auto (whichever are set), none (one rank)")
      ->group(group)
      ->default_str("auto");
  add_number(app, "--rank-deadline", raw.options.rank_deadline_seconds, {1, 31'536'000},
             "Seconds that a rank waits for another; a quarter of it brings a warning")
      ->group(group)
      ->default_str(std::to_string(raw.options.rank_deadline_seconds));
}

void add_background_option(CLI::App& app, Options& o) {
  app.add_flag("--save-in-background", o.save_in_background,
               "Train on while a checkpoint of --save-every is written, at most at "
               "headrace.background_save_bytes_per_second [200MiB]. Needs --store; no step is "
               "committed to it while a checkpoint is read from it")
      ->group("Files");
}

void add_file_options(CLI::App& app, RawOptions& raw) {
  const char* group = "Files";
  Options& o = raw.options;
  app.add_option("--text", o.text, "Text file, or folder of text files [Python's standard library]")
      ->group(group);
  app.add_option(
         "--init", o.init_folder,
         "Folder to read the weights from: model.safetensors, or several files and their index")
      ->group(group);
  app.add_option("--store", o.store,
                 "Commit every step to the store of this name, and continue from it if it exists: "
                 "short for --set headrace.durable=step --set headrace.store=NAME")
      ->group(group)
      ->type_name("NAME");
  app.add_option("--save", o.save_folder,
                 "Folder to write model.safetensors to at the end; made if missing")
      ->group(group);
  constexpr std::uint64_t kMost = 1'000'000'000;
  add_number(app, "--save-every", o.save_every, {1, kMost},
             "Also save a checkpoint, from which --load continues, to the folder's step-N after "
             "every N steps")
      ->group(group);
  add_background_option(app, o);
  add_number(app, "--keep", o.keep, {1, kMost},
             "Checkpoints of the folder to keep: older ones are removed once a new one is there "
             "[all]")
      ->group(group);
  app.add_option("--load", o.load_folder,
                 "Checkpoint to continue from, or a folder of --save-every: its latest")
      ->group(group);
  app.add_flag("--overwrite", o.overwrite,
               "Let --save replace a model.safetensors or a checkpoint that is there")
      ->group(group);
  app.add_option("--json", o.json, "File for the report; - is stdout")->group(group);
  app.add_option("--trace", o.trace,
                 "File for a timeline: open it in ui.perfetto.dev or chrome://tracing")
      ->group(group);
  app.add_flag("--no-progress", raw.no_progress, "No progress line and no lines per step")
      ->group(group);
}

bool is_device(std::string_view word) {
  if (word == "cpu" || word == "cuda") return true;
  if (!word.starts_with("cuda:")) return false;
  word.remove_prefix(5);
  unsigned ordinal = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), ordinal);
  return error == std::errc{} && end == word.data() + word.size() && ordinal < 128;
}

void check_saving(const Options& o) {
  if (o.plain && !o.save_folder.empty()) {
    throw Fault{"--plain and --save exclude each other: --plain saves nothing",
                "Leave one of them out"};
  }
  if (o.save_every > 0 && o.save_folder.empty())
    throw Fault{"--save-every without --save has no folder", "Give --save DIR with it"};
  if (o.save_in_background && o.save_every == 0) {
    throw Fault{"--save-in-background without --save-every has no checkpoints",
                "Give --save-every N with it"};
  }
  if (o.keep > 0 && o.save_every == 0)
    throw Fault{"--keep without --save-every has no checkpoints", "Give --save-every N with it"};
  if (!o.load_folder.empty() && !o.init_folder.empty()) {
    throw Fault{"--load and --init exclude each other: a checkpoint has weights of its own",
                "Leave one of them out"};
  }
  if (o.plain && !o.load_folder.empty()) {
    throw Fault{"--plain and --load exclude each other: --plain has no optimizer state to load",
                "Leave one of them out"};
  }
  if (o.overwrite && o.save_folder.empty())
    throw Fault{"--overwrite without --save has nothing to replace", "Give --save DIR with it"};
}

void check_options(const Options& o) {
  check_shape(o.shape);
  if (!is_device(o.device)) {
    throw Fault{"--device " + o.device + " is none that this program knows",
                "Give cpu, cuda, or cuda: and a number"};
  }
  const std::uint64_t windows = std::uint64_t{o.batch} * (std::uint64_t{o.shape.sequence} + 1);
  if (windows > kMostWindowBytes) {
    throw Fault{"--batch " + std::to_string(o.batch) + " with --seq " +
                    std::to_string(o.shape.sequence) + " is more than 2^30 bytes",
                "Give a batch of at most " +
                    std::to_string(kMostWindowBytes / (std::uint64_t{o.shape.sequence} + 1))};
  }
  if (o.least_learning_rate > o.learning_rate) {
    throw Fault{"--min-lr " + words_of(o.least_learning_rate) + " is more than --lr " +
                    words_of(o.learning_rate) + ", so the schedule would rise",
                "Give a smaller --min-lr"};
  }
  if (o.warmup_steps > o.steps) {
    throw Fault{"--warmup " + std::to_string(o.warmup_steps) + " is longer than --steps " +
                    std::to_string(o.steps) + ", so --lr would never be reached",
                "Give a shorter warm-up"};
  }
  check_saving(o);
  if (o.trace == "-")
    throw Fault{"--trace - : a trace is written as it comes, and stdout has the report",
                "Give --trace a file"};
}

// --set and --accumulation in the order of the line, since of two the later one holds. Gives a note
// where two say different things, else nothing.
std::string put_in_order(const CLI::App& app, Options& o) {
  const CLI::Option* const set = app.get_option("--set");
  const CLI::Option* const accumulation = app.get_option("--accumulation");
  std::map<const CLI::Option*, std::size_t> seen;
  std::string holds, lost;  // of the number of micro-batches, as on the line
  std::string held;
  o.overrides.clear();
  for (const CLI::Option* option : app.parse_order()) {
    if (option != set && option != accumulation) continue;
    const std::string word = option->results().at(seen[option]++);
    const std::string setting = option == set ? word : kAccumulationKey + word;
    o.overrides.push_back(setting);
    if (!setting.starts_with(kAccumulationKey)) continue;
    if (!held.empty() && held != setting) lost = holds;
    held = setting;
    holds = option->get_name() + " " + word;
  }
  return lost.empty() ? "" : "of '" + lost + "' and '" + holds + "' the later one holds";
}

void note_given(const CLI::App& app, Options::Given& given) {
  given.batch = app.count("--batch") > 0;
  given.learning_rate = app.count("--lr") > 0;
  given.weight_decay = app.count("--weight-decay") > 0;
  given.least_learning_rate = app.count("--min-lr") > 0;
  given.schedule = given.least_learning_rate || app.count("--warmup") > 0;
}

Options finish(RawOptions raw) {
  Options o = std::move(raw.options);
  o.least_learning_rate = raw.least.value_or(o.learning_rate / 10);
  o.warmup_steps = raw.warmup.value_or((o.steps + 9) / 10);
  o.progress = !raw.no_progress;
  check_options(o);
  return o;
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
  add_model_options(app, raw.options.shape);
  add_training_options(app, raw);
  add_placement_options(app, raw);
  add_rank_options(app, raw);
  add_file_options(app, raw);
  ParsedOptions result;
  result.json = headrace::command_line::value_of("--json", argc, argv);
  try {
    headrace::command_line::parse(app, argc, argv);
    result.text = put_in_order(app, raw.options);
    note_given(app, raw.options.given);
    result.options = finish(std::move(raw));
  } catch (const CLI::CallForHelp&) {
    result.text = app.help();
  } catch (const CLI::CallForVersion& version) {
    result.text = version.what() + std::string("\n");
  } catch (const Fault& fault) {
    result.text = headrace::command_line::text_of(fault, kConsequence);
    result.exit_code = kRefused;
  } catch (const headrace::Error& error) {
    result.text = error.what();
    result.exit_code = kRefused;
  }
  return result;
}
}  // namespace train_gpt
