// SPDX-License-Identifier: Apache-2.0
#include "plan/scenario_options.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kDefaults = "defaults of plan";

// The assumptions without settings: all that may lie on NVMe does, memory keeps as much as fits,
// and bf16.
std::string default_settings(const std::vector<std::string>& set) {
  const bool placed = std::ranges::any_of(
      set, [](const std::string& one) { return one.find("nvme_path") != std::string::npos; });
  return std::string(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme")") +
         (placed ? "" : R"(, "nvme_path": "NVMe")") +
         R"(}, "offload_param": {"device": "nvme"}}, "bf16": {"enabled": "auto"},
             "headrace": {"host_budget_bytes": "auto"}})";
}

void add_lists(CLI::App& app, ScenarioOptions& o) {
  command_line::add_repeated(app, "--set", o.set,
                             "One setting, such as headrace.moments=8bit; may be repeated")
      ->type_name("KEY=VALUE");
  command_line::add_repeated(app, "--frozen", o.frozen,
                             "Parameters that are not trained; may be repeated")
      ->type_name("PATTERN");
}

// As reports print it: 2.5e+10, 5e-05.
bool has_exponent(const std::string& word) {
  return word.find_first_not_of("0123456789.eE+-") == std::string::npos &&
         word.find_first_of("eE") != std::string::npos;
}

// A network's rates are sold in bits. "Gb" is read as such by some and as bytes by others.
double bytes_or_bits_of(const std::string& name, std::string word) {
  const bool bits = word.ends_with("bit");
  if (bits) {
    word.resize(word.size() - 2);
  } else if (word.size() > 1 && word.back() == 'b' &&
             std::string_view("KMGTP").find(word[word.size() - 2]) != std::string_view::npos) {
    const std::string amount = word.substr(0, word.size() - 1);
    throw command_line::Fault{name + " '" + word + "' may mean bits or bytes a second",
                              "Give " + amount + "bit or " + amount + "B"};
  }
  const auto amount =
      static_cast<double>(command_line::to_bytes(name, word, {0, std::uint64_t{1} << 52}));
  return bits ? amount / 8 : amount;
}

double rate_of(const std::string& name, std::string word, const FigureName& figure) {
  const std::string unit(figure.unit);
  if (unit == "bytes/s" && word.ends_with("/s")) word.resize(word.size() - 2);
  if (unit == "s" && !has_exponent(word))
    return command_line::to_seconds(name, word, {figure.least, figure.most});
  if (unit != "bytes/s" || has_exponent(word))
    return command_line::to_real(name, word, {figure.least, figure.most});
  const double bytes = bytes_or_bits_of(name, word);
  if (bytes >= figure.least && bytes <= figure.most) return bytes;
  throw command_line::Fault{name + " '" + word + "' is " +
                                std::to_string(static_cast<std::uint64_t>(bytes)) +
                                " bytes a second, and no drive, memory or link is so",
                            "Give a rate from 1MB to 1000000GB, with its unit: 7GB"};
}

// "--nvme-read 7GB", "--flops 70e12": instead of what the machine says.
void add_figures(CLI::App& app, ScenarioOptions& o) {
  for (const FigureName& figure : figure_names()) {
    std::string name = std::string("--") + figure.name;
    std::ranges::replace(name, '_', '-');
    const auto take = [&o, name, figure](const std::string& word) {
      o.figures.emplace_back(figure.name, rate_of(name, word, figure));
    };
    app.add_option_function<std::string>(name, take,
                                         std::string("Rate: ") + figure.what + ", " + figure.unit)
        ->type_name("X");
  }
}

void add_batch(CLI::App& app, ScenarioOptions& o) {
  command_line::add_number(app, "--seq", o.sequence, {1, 1u << 24},
                           "Tokens of a sequence [2048, or as many as the model has positions]");
  command_line::add_number(app, "--batch", o.batch, {1, 1u << 20},
                           "Sequences per micro-batch and rank [the settings', or 1]");
  command_line::add_number(app, "--accumulation", o.accumulation, {1, 100'000},
                           "Micro-batches per step [gradient_accumulation_steps]");
  app.add_flag("--checkpointing", o.checkpointing, "Compute activations again in backward");
  app.add_flag("--offload-checkpoints", o.offload_checkpoints,
               "What --checkpointing keeps waits in host memory");
  command_line::add_number(app, "--tensor-parallel", o.tensor_parallel, {1, 1024},
                           "Ranks of a node with a slice of each matrix, and one --batch [1]");
}

Machine machine_for(const ScenarioOptions& o, const Settings& settings) {
  Machine machine = machine_of(o.machine);
  look_at_drives(machine, settings);
  const bool all = o.gpus == ScenarioOptions::kAllGpus;
  if (machine.here && !all && o.gpus > 0) take_gpus_here(machine, o.gpus);
  if (!o.copy_json.empty()) take_copy_report(machine, o.copy_json);
  if (!all && o.gpus > machine.gpus) {
    throw Error(Code::kInvalidArgument,
                "--gpus " + std::to_string(o.gpus) + ", and " + machine.name + " has " +
                    std::to_string(machine.gpus) +
                    "; nothing was planned. Give fewer, or another --machine.");
  }
  if (o.gpus == 0 && machine.gpus > 0) {
    machine.flops = machine.backward_flops = machine.link = {};  // these were a GPU's
  }
  if (!all) machine.gpus = o.gpus;
  for (const auto& [name, value] : o.figures) *figure_of(machine, name) = {value, "given"};
  assume_the_rest(machine);
  if (o.drive_tbw > 0) machine.drive_tbw = o.drive_tbw;
  return machine;
}

void refuse_without_gpu(const Scenario& s, const ScenarioOptions& o) {
  if (!s.on_cpu()) return;
  if (o.offload_checkpoints) {
    throw Error(Code::kUnsupported,
                "--offload-checkpoints with " + s.machine.name +
                    ", whose CPU computes; nothing was planned. Leave it out: activations are in "
                    "host memory.");
  }
  if (s.settings.update_on != UpdateOn::kDevice) return;
  throw Error(Code::kUnsupported,
              "headrace.update_on is \"device\", and " + s.machine.name +
                  " computes on its CPUs; nothing was planned. Name a GPU by --machine, --gpus or "
                  "--copy-json, or set it to \"auto\" or \"cpu\".");
}

void refuse_odd_ranks(const Scenario& s, const ScenarioOptions& o) {
  if (!s.on_cpu() && o.cpu_ranks > 1) {
    throw Error(Code::kInvalidArgument,
                fmt::format("--ranks {}, and {} has a rank for each of its {} GPUs; nothing was "
                            "planned. Give --gpus, or --gpus 0 for ranks on the CPU.",
                            o.cpu_ranks, s.machine.name, s.machine.gpus));
  }
  if (s.ranks_per_node() % o.tensor_parallel == 0) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("--tensor-parallel {} does not divide the {} ranks of a node, which it "
                          "stays within; nothing was planned. Give a divisor.",
                          o.tensor_parallel, s.ranks_per_node()));
}
}  // namespace

std::string known_names_text() {
  return "\nNames of models: " + known_models() + "\n\nNames of machines: " + known_machines() +
         "\n";
}

void add_scenario_options(CLI::App& app, ScenarioOptions& o) {
  app.add_option("MODEL", o.model, "Name, directory, or file of shapes")->type_name("");
  app.add_option("--machine", o.machine,
                 "Name, or file of headrace doctor or bench --json [this machine]")
      ->type_name("NAME|FILE");
  command_line::add_number(app, "--gpus", o.gpus, {0, 1024},
                           "GPUs of a node that are used, 0: the CPU computes [all; of this "
                           "machine 0]");
  command_line::add_number(app, "--ranks", o.cpu_ranks, {1, 1024},
                           "Ranks of a node whose CPU computes [1]");
  app.add_option("--copy-json", o.copy_json,
                 "File of headrace bench copy --json: memory and link of each GPU")
      ->type_name("FILE");
  add_batch(app, o);
  app.add_option("--settings,--config", o.settings,
                 "Settings file of an engine [all on NVMe, budget auto]")
      ->type_name("FILE");
  add_lists(app, o);
  command_line::add_real(app, "--drive-tbw", o.drive_tbw, {0.001, 1e9},
                         "Rated write endurance of a drive in TB, for its wear");
  add_figures(app, o);
}

void check_scenario(const ScenarioOptions& o) {
  if (o.model.empty()) throw command_line::Fault{"MODEL is missing", "Name a model"};
  if (o.offload_checkpoints && !o.checkpointing) {
    throw command_line::Fault{"--offload-checkpoints without --checkpointing: there are none",
                              "Give both"};
  }
}

Scenario scenario_without_batch(const ScenarioOptions& o) {
  Scenario s;
  s.settings =
      o.settings.empty()
          ? Settings::from_json(default_settings(o.set), kDefaults,
                                ReadOptions{.overrides = o.set, .for_auto = {"bf16.enabled=true"}})
          : Settings::from_file(o.settings,
                                ReadOptions{.overrides = o.set, .leave_auto_open = true});
  // Nobody wrote those.
  std::erase_if(s.settings.warnings,
                [](const std::string& warning) { return warning.starts_with(kDefaults); });
  s.machine = machine_for(o, s.settings);
  s.cpu_ranks = o.cpu_ranks;
  refuse_without_gpu(s, o);
  refuse_odd_ranks(s, o);
  s.model = std::make_shared<PlannedModel>(
      sliced(planned_model(model_of(o.model), o.frozen), o.tensor_parallel));
  s.sequence = o.sequence > 0 ? o.sequence : usual_sequence(*s.model);
  s.nodes = o.nodes;
  if (o.batch > 0) s.settings.train_micro_batch_size_per_gpu = o.batch;
  if (o.accumulation > 0) s.settings.gradient_accumulation_steps = o.accumulation;
  // A batch on the line is another question than the file's.
  if (s.settings.train_batch_size && (o.batch > 0 || o.accumulation > 0)) {
    s.settings.warnings.push_back("train_batch_size " +
                                  std::to_string(*s.settings.train_batch_size) +
                                  " is left aside: --batch and --accumulation say what is planned");
    s.settings.train_batch_size.reset();
  }
  if (o.offload_checkpoints) {
    s.activations = Activations::kCheckpointedInHostMemory;
  } else if (o.checkpointing) {
    s.activations = Activations::kCheckpointed;
  }
  return s;
}

Scenario scenario_for(const ScenarioOptions& options) {
  Scenario s = scenario_without_batch(options);
  s.take_batch();
  return s;
}
}  // namespace headrace::tools
