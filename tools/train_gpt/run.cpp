// SPDX-License-Identifier: Apache-2.0
// run.cpp: checks all that can be checked first, then creates, trains, evaluates, saves, reports.
#include "run.hpp"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <set>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "command_line/report_file.hpp"
#include "failures.hpp"
#include "loop.hpp"
#include "openmp_waits.hpp"
#include "process.hpp"
#include "program/signals.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "safetensors.hpp"

namespace train_gpt {
namespace {
using headrace::Code;
using headrace::base::format_bytes;
using headrace::command_line::check_report_target;
using headrace::command_line::check_targets_differ;
using headrace::command_line::write_report;
using headrace::tools::check_signal;
using headrace::tools::signal_received;
using headrace::tools::TellOnSignal;

headrace::Settings read_settings(const Options& options) {
  headrace::ReadOptions read{.overrides = options.overrides, .for_auto = values_for_auto(options)};
  if (!options.store.empty()) {  // what --set says of them goes before
    read.overrides.insert(read.overrides.begin(),
                          {"headrace.durable=step", "headrace.store=" + options.store});
  }
  if (options.given.batch)
    read.overrides.push_back("train_micro_batch_size_per_gpu=" + std::to_string(options.batch));
  // Without a file nothing asks for a dtype, and one without sections asks for f32.
  if (options.config.empty())
    return headrace::Settings::from_json(R"({"bf16": {"enabled": "auto"}})", "--set", read);
  return headrace::Settings::from_file(options.config, read);
}

// The rate where the settings name none.
constexpr std::uint64_t kBackgroundSaveRate = 200 * headrace::base::kMiB;

void allow_background_saves(headrace::Settings& settings) {
  if (settings.durable_every == 0) {
    fail(Code::kInvalidArgument,
         "--save-in-background reads what is committed to a store, and this run has none; the run "
         "was not started. Give --store NAME, or leave out --save-in-background.");
  }
  if (settings.background_save_bytes_per_second == 0)
    settings.background_save_bytes_per_second = kBackgroundSaveRate;
}

// What --init names, checked against the model name by name.
std::optional<InitialWeights> open_initial(const Options& options) {
  if (options.init_folder.empty()) return std::nullopt;
  InitialWeights weights = open_initial_weights(options.init_folder);
  std::set<std::string> known;
  for (const NamedShape& parameter : gpt_parameters(options.shape)) {
    require(weights, parameter.name, name_of(options.shape.dtype), parameter.shape);
    known.insert(parameter.name);
  }
  for (const auto& [name, file] : weights.names()) {
    if (known.contains(name)) continue;
    fail(Code::kInvalidArgument,
         "'" + weights.path() + "' has a tensor " + headrace::base::quoted_name(name) +
             " that this model lacks; nothing was read. Give the --layers it was saved with.");
  }
  return weights;
}

// Before hours are spent on weights that cannot be saved.
void check_save_folder(const std::string& folder, bool overwrite, std::uint64_t needed) {
  if (folder.empty()) return;
  struct stat status {};
  const std::string file = folder + "/" + kModelFile;
  if (!overwrite && ::lstat(file.c_str(), &status) == 0) {
    fail(Code::kInvalidArgument,
         "'" + file + "' is there already; the run was not started, since its end would replace " +
             "those weights. Give --save another folder, or --overwrite.");
  }
  const std::string existing = folder_or_above(folder);
  remove_dead_writes(folder);
  struct statvfs space {};
  int number = 0;
  if (::stat(existing.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    number = ENOTDIR;
  } else if (::access(existing.c_str(), W_OK | X_OK) != 0 ||
             ::statvfs(existing.c_str(), &space) != 0) {
    number = errno;
  }
  if (number != 0) {
    fail(number == ENOENT ? Code::kNotFound : Code::kIo,
         "cannot save to '" + folder + "': " + errno_text(number) + " for '" + existing +
             "'; the weights would be lost. Give --save a folder that you may write to.",
         number);
  }
  check_file_size(file, needed);
  const std::uint64_t free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (free_bytes >= needed) return;
  fail(Code::kNoSpace, "'" + existing + "' has " + format_bytes(free_bytes) +
                           " free, the weights take " + format_bytes(needed) +
                           "; they could not be saved. Make room, or save elsewhere.");
}

void check_products(const Options& options) {
  if (options.products != Products::kBf16 || options.shape.dtype == headrace::DType::kBf16) return;
  fail(
      Code::kInvalidArgument,
      std::string("--products bf16: the weights are ") +
          (options.shape.dtype == headrace::DType::kF16 ? "fp16" : "f32") +
          ", whose products cannot be bf16; the run was not started. Leave --products out, or give "
          "--products f32.");
}

class Run {
 public:
  Run(const Options& options, const TorchParts& torch, World& world)
      : torch_(torch), world_(world), progress_(options.progress && world.speaks()) {
    report_.options = options;
    if (world.speaks()) return;
    report_.options.json.clear();  // rank 0 reports for all
    report_.options.trace.clear();
  }

  // Throws headrace::Error.
  Report execute() {
    const Options& options = report_.options;
    const Text text = Text::open(options.text);
    headrace::Settings settings = read_settings(options);
    if (options.save_in_background) allow_background_saves(settings);
    const Recipe& recipe = report_.recipe = make_recipe(options, settings, world_.size());
    report_.options.shape.dtype = recipe.dtype;
    Batches batches(text, recipe.batch, options.shape.sequence, options.seed);
    report_.parameters = count_elements(gpt_parameters(options.shape));
    const auto initial = open_initial(options);
    check_products(options);
    if (initial) init_fingerprint_ = initial->fingerprint();
    describe_setting(text, settings);
    world_.compare(facts());
    checkpoints_.emplace(options, recipe.dtype, settings.optimizer, world_, progress_);
    check_save_folder(options.save_folder, options.overwrite, saved_bytes(options.shape));
    for (const std::string& line : settings.defaults_taken) {
      if (!options.config.empty()) say("train_gpt: " + line);
    }
    if (options.plain) say_what_plain_ignores(settings);
    check_address_space();
    if (!options.trace.empty()) trace_.emplace(options.trace);
    load_torch();
    world_.compare({products_fact()});
    progress_.stage("creating the model");
    report_.doing = "the creation of the model";
    const TrainingSetup setup{options,   recipe, settings, initial ? &*initial : nullptr,
                              progress_, world_};
    const auto training = options.plain ? torch_.make_plain(setup) : torch_.make_offloaded(setup);
    say_what_activations_go_by(settings);
    if (initial && !training->resumed()) {
      say("train_gpt: --init takes the weights alone: the optimizer's state, the schedule and the "
          "order of batches begin anew");
    }
    checkpoints_->set_facts(course_facts());
    checkpoints_->check(steps_done(*training), saved_bytes(options.shape));
    const TellOnSignal tell([](void* to) noexcept { static_cast<Training*>(to)->interrupt(); },
                            training.get());
    running_ = true;
    work(*training, batches);
    return std::move(report_);
  }

  Progress& progress() noexcept { return progress_; }

  // The report of a failure, once execute() has thrown.
  Failure failure(const std::exception& error) const {
    Failure failure = describe(error, running_, signal_received(), in_torch(error));
    if (signal_received() == 0 && !running_) return failure;
    const Options& o = report_.options;
    const std::string outcome = outcome_text(
        {.steps_done = report_.resumed_from + report_.steps.size(),
         .steps = o.steps,
         .asked_to_save = !o.save_folder.empty(),
         .saved = report_.saved,
         .had_swap = has_swap_,
         .plain = o.plain,
         .store = running_ ? store_ : "",
         .checkpoint = report_.checkpoints.empty() ? "" : report_.checkpoints.back().folder});
    while (failure.text.ends_with('.')) failure.text.pop_back();
    failure.text += "; " + outcome;
    return failure;
  }
  InTorch in_torch(const std::exception& error) const {
    if (torch_.version_that_threw == nullptr) return {};
    return {torch_.version_that_threw(error), report_.doing};
  }
  // `failure` with the steps there were, if there could have been any.
  std::string document(const Failure& failure) const {
    return running_ ? to_json(report_, &failure) : failure_json(failure);
  }

 private:
  // The peak of memory is counted from here on.
  void load_torch() {
    progress_.stage("loading torch");
    report_.torch = torch_.warm_up(report_.options);
    report_.options.shape.products_in_f32 = report_.torch.products_in_f32;
    reset_peak();
    report_.memory.baseline_rss_bytes = resident_bytes();
    check_signal();
  }

  void say(const std::string& line) {
    if (world_.speaks()) progress_.message(line);
  }

  // The facts that must be equal on every rank, beside the settings, which the engine compares.
  std::vector<std::string> facts() const {
    const Options& o = report_.options;
    const GptShape& s = o.shape;
    std::vector<std::string> facts{facts_of_text()};
    const auto add = [&](const char* option, const std::string& value) {
      facts.push_back(std::string(option) + " " + value);
    };
    add("--layers", std::to_string(s.layers));
    add("--heads", std::to_string(s.heads));
    add("--hidden", std::to_string(s.hidden));
    add("--seq", std::to_string(s.sequence));
    add("--steps", std::to_string(o.steps));
    add("--warmup", std::to_string(o.warmup_steps));
    add("--seed", std::to_string(o.seed));
    add("--eval-batches", std::to_string(o.eval_batches));
    add("--save-every", std::to_string(o.save_every));
    add("--lr", exact_words_of(o.learning_rate));
    add("--min-lr", exact_words_of(o.least_learning_rate));
    add("--weight-decay", exact_words_of(o.weight_decay));
    const auto add_choice = [&](const char* option, bool given) {
      facts.push_back((given ? "" : "no ") + std::string(option));
    };
    add_choice("--checkpointing", o.checkpointing);
    add_choice("--save", !o.save_folder.empty());
    facts.push_back(init_fingerprint_.empty()
                        ? "no --init"
                        : "--init weights with the checksum " + init_fingerprint_);
    add_choice("--save-in-background", o.save_in_background);
    add_choice("--load", !o.load_folder.empty());
    return facts;
  }

  // What the results of a run that is continued depend on, beside what the engine compares.
  std::vector<std::string> course_facts() const {
    const Options& o = report_.options;
    Recipe alone = report_.recipe;  // ranks change no result
    alone.accumulation *= alone.ranks;
    alone.ranks = 1;
    std::vector<std::string> facts = {facts_of_text()};
    for (const auto& [option, value] :
         {std::pair("--heads ", std::uint64_t{o.shape.heads}), std::pair("--seed ", o.seed),
          std::pair("--steps ", o.steps)})
      facts.push_back(option + std::to_string(value));
    facts.push_back(alone.words());
    facts.push_back(products_fact());
    return facts;
  }
  // As --products auto decides by the CPU.
  std::string products_fact() const {
    return report_.options.shape.products_in_f32 ? "products in f32"
                                                 : "products in the weights' dtype";
  }
  std::string facts_of_text() const {
    return "a text of " + std::to_string(report_.text_bytes) + " bytes with the checksum " +
           text_checksum_;
  }

  void describe_setting(const Text& text, const headrace::Settings& settings) {
    report_.text_origin = text.origin();
    report_.text_bytes = text.size_bytes();
    report_.unigram_entropy_nats = text.unigram_entropy_nats(&text_checksum_);
    report_.drives = static_cast<std::uint32_t>(settings.nvme_paths.size());
    report_.config = settings.to_json();
    if (settings.durable_every > 0) store_ = settings.store;
    has_swap_ = !report_.options.plain && is_on_nvme(settings);
  }

  static bool is_on_nvme(const headrace::Settings& s) {
    return s.offload_optimizer == headrace::OffloadDevice::kNvme ||
           s.offload_parameters == headrace::OffloadDevice::kNvme;
  }

  // The settings of accumulation and clipping are the trainer's, and hold.
  void say_what_plain_ignores(const headrace::Settings& settings) {
    for (const std::string& warning : settings.warnings) say("train_gpt: warning: " + warning);
    const headrace::Settings usual;
    const headrace::OptimizerSection& section = settings.optimizer_section;
    if (settings.optimizer != usual.optimizer || settings.moments != usual.moments ||
        settings.master != usual.master || settings.non_finite != usual.non_finite ||
        section.maximize.value_or(false) || !section.bias_correction.value_or(true)) {
      say("train_gpt: warning: --plain trains with torch's AdamW and f32 states: the optimizer in "
          "the settings (headrace.optimizer, moments, master, non_finite, or optimizer.type, "
          "maximize, bias_correction) has no effect. Leave out --plain to have it.");
    }
    const bool placed = settings.offload_optimizer != headrace::OffloadDevice::kNone ||
                        settings.offload_parameters != headrace::OffloadDevice::kNone ||
                        settings.host_budget_bytes > 0 || settings.host_budget_auto;
    if (!placed) return;
    say("train_gpt: warning: --plain keeps everything in torch's memory: the placement in the "
        "settings (zero_optimization, headrace.host_budget_bytes) has no effect. Leave out "
        "--plain to have it.");
  }

  // After the warnings that name the settings: what holds instead, unless activations are not kept.
  void say_what_activations_go_by(const headrace::Settings& settings) {
    if (report_.options.checkpointing) return;
    for (const std::string& warning : settings.warnings) {
      if (warning.find("activations are the trainer's") == std::string::npos) continue;
      say("train_gpt: warning: all activations stay in torch's memory until backward; settings do "
          "not change that. --checkpointing keeps the input of each block alone and runs the block "
          "again.");
      return;
    }
  }

  void work(Training& training, Batches& batches) {
    const Options& options = report_.options;
    {
      const OpenMpWaits waits(report_.torch.threads, report_.short_waits_s);
      train_and_trace(training, batches);
    }
    report_.doing = "the evaluation on held-out text";
    if (options.eval_batches > 0)
      report_.eval_loss = evaluate(training, batches, world_, options.eval_batches, progress_);
    check_signal();
    report_.doing = "hashing and saving";
    if (!options.plain)
      progress_.stage(options.save_folder.empty() ? "hashing" : "hashing and saving");
    report_.parameters_hash = training.hash_parameters();
    report_.optimizer_state_hash = training.hash_optimizer_state();
    if (!options.save_folder.empty()) save_weights(training);
    check_signal();
    if (const headrace::PlanReport* plan = training.plan()) {
      report_.plan = *plan;
      report_.memory.planned_bytes = plan->host_bytes + plan->trainer_bytes;
      report_.memory.engine_bytes = training.stats().engine_bytes;
    }
    report_.memory.peak_rss_bytes = peak_resident_bytes();
    report_.memory.device_peak_bytes = torch_.device_peak(options);
    report_.ranks = world_.words();
    compare_ranks();
    training.close();
  }

  // Figures in which ranks differ, of all of them.
  void compare_ranks() {
    const BusySeconds busy = busy_seconds_of(report_);
    const headrace::Stats &a = report_.stats_before, &b = report_.stats_after;
    const auto bytes = [](std::uint64_t more, std::uint64_t less = 0) {
      return static_cast<double>(more - less);
    };
    const MemoryRecord& memory = report_.memory;
    const std::pair<const char*, double> mine[] = {
        {"peak_rss_bytes", bytes(memory.peak_rss_bytes)},
        {"baseline_rss_bytes", bytes(memory.baseline_rss_bytes)},
        {"planned_bytes", bytes(memory.planned_bytes)},
        {"engine_bytes", bytes(memory.engine_bytes)},
        {"nvme_read_bytes", bytes(b.nvme_read_bytes, a.nvme_read_bytes)},
        {"nvme_written_bytes", bytes(b.nvme_written_bytes, a.nvme_written_bytes)},
        {"sent_bytes", bytes(b.collective_sent_bytes, a.collective_sent_bytes)},
        {"sent_to_other_nodes_bytes",
         bytes(b.collective_sent_to_other_nodes_bytes, a.collective_sent_to_other_nodes_bytes)},
        {"steps_seconds", busy.steps_s},
        {"collective_seconds", b.collective_seconds - a.collective_seconds},
        {"gather_wait_seconds", busy.gather_wait_s},
        {"gather_wait_ranks_seconds", b.gather_wait_ranks_seconds - a.gather_wait_ranks_seconds},
        {"gradient_wait_ranks_seconds",
         b.gradient_wait_ranks_seconds - a.gradient_wait_ranks_seconds},
        {"step_wait_ranks_seconds", b.step_wait_ranks_seconds - a.step_wait_ranks_seconds}};
    for (const auto& [what, value] : mine)
      report_.of_ranks.push_back({what, world_.of_all(what, value)});
  }

  void train_and_trace(Training& training, Batches& batches) {
    train(training, batches, world_, report_, progress_, *checkpoints_,
          trace_ ? &*trace_ : nullptr);
    if (!trace_) return;
    const std::string fault = trace_->fault();
    if (!fault.empty()) progress_.message("train_gpt: warning: " + fault);
    trace_.reset();
  }

  void save_weights(Training& training) {
    const Options& options = report_.options;
    report_.saved = save(training, world_, options.shape, options.save_folder, options.overwrite);
    if (!world_.speaks() || report_.saved.ends_with("/" + std::string(kModelFile))) return;
    progress_.message("train_gpt: warning: '" + options.save_folder + "/" + kModelFile +
                      "' was made by something else during the run; these weights are in '" +
                      report_.saved + "'.");
  }

  TorchParts torch_;
  World& world_;
  Report report_;
  Progress progress_;
  std::optional<TraceFile> trace_;
  std::optional<Checkpoints> checkpoints_;
  std::string text_checksum_, init_fingerprint_;
  std::string store_;  // its name; empty: none
  bool running_ = false;
  bool has_swap_ = false;
};

void print_error(const std::string& text, const std::string& speaker = "") {
  std::fprintf(stderr, "train_gpt: %serror: %s\n", speaker.c_str(), text.c_str());
}

int report_failure(const Failure& failure, const std::string& target, const std::string& document,
                   const std::string& speaker = "") {
  print_error(failure.text, speaker);
  try {
    write_report(target, document);
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return failure.exit_code;
}

// The text is printed even where the document cannot be written.
int report_success(const Report& report) {
  const std::string& target = report.options.json;
  int exit_code = kDone;
  const auto write = [&](const std::string& to, const std::string& document) {
    try {
      write_report(to, document);
    } catch (const std::exception& error) {
      print_error(error.what());
      exit_code = kFailed;
    }
  };
  write(target, to_json(report));
  if (target != "-") write("-", to_text(report));
  return exit_code;
}
}  // namespace

namespace {
int run_rank(const Options& options, const TorchParts& torch, World& world) {
  Run run(options, torch, world);
  try {
    const Report report = run.execute();
    run.progress().clear();
    return world.speaks() ? report_success(report) : int{kDone};
  } catch (const std::exception& error) {
    run.progress().clear();
    world.abort(describe(error, true, signal_received(), run.in_torch(error)).text);
    const Failure failure = run.failure(error);
    return report_failure(failure, world.speaks() ? options.json : "", run.document(failure),
                          world.prefix());
  }
}
}  // namespace

int run_program(int argc, const char* const* argv, const TorchParts& torch) {
  const ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) {
    if (parsed.exit_code != 0) {
      const Failure failure{parsed.exit_code, "kInvalidArgument", parsed.text};
      return report_failure(failure, parsed.json, failure_json(failure));
    }
    std::fputs(parsed.text.c_str(), stdout);
    return kDone;
  }
  const Options& options = *parsed.options;
  if (!parsed.text.empty()) std::fprintf(stderr, "train_gpt: %s\n", parsed.text.c_str());
  try {
    check_report_target(options.json);
    check_report_target(options.trace, "--trace", is_own_trace);
    check_targets_differ({{"--json", options.json}, {"--trace", options.trace}});
  } catch (const headrace::Error& error) {
    print_error(error.what());
    return exit_code_for(error, false);
  }
  World world;
  headrace::Launch launch;
  int exit_code = kDone;
  try {
    launch = headrace::find_launch(options.ranks);
    speak_as(World::prefix_of(launch.rank));
    world = World(launch, torch.join, options);
    exit_code = run_rank(options, torch, world);
  } catch (const headrace::Error& error) {  // there are no ranks to run
    const Failure failure = describe(error, false, signal_received());
    exit_code = report_failure(failure, launch.rank == 0 ? options.json : "", failure_json(failure),
                               World::prefix_of(launch.rank));
  }
  world.leave();
  if (torch.leave != nullptr) torch.leave(exit_code);
  return exit_code;
}
}  // namespace train_gpt
