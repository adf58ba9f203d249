// SPDX-License-Identifier: Apache-2.0
#include "estimate/estimate.hpp"

#include <CLI/CLI.hpp>
#include <cctype>

#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/output.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kProgram = "headrace estimate";
constexpr const char* kDescription =
    "Memory that training a model takes, without activations: the states that each stage of ZeRO "
    "has on a\nGPU, and the estimates that DeepSpeed's users know, for ZeRO-2 and ZeRO-3, beside "
    "what an engine of ours\nwould allocate. Touches no drive and no GPU. MODEL is a name, a "
    "directory with safetensors or config.json,\nor a JSON file of shapes.\n";
constexpr std::uint64_t kMostParameters = std::uint64_t{1} << 50;

std::string footer() {
  return "\nNames: " + known_models() +
         "\n\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 128+n ended by "
         "signal n.\n";
}

struct Options {
  std::string model, config, json;
  std::vector<std::string> set;
  EstimateInputs inputs;
};

// "2851M", "2.85B", "2851598336": powers of 1000.
std::uint64_t to_count(const std::string& name, const std::string& word) {
  constexpr const char* kLetters = "kmbt";
  double factor = 1;
  std::string digits = word;
  const char last = word.empty() ? '\0' : static_cast<char>(std::tolower(word.back()));
  for (int i = 0; last != '\0' && kLetters[i] != '\0'; ++i) {
    if (last != kLetters[i]) continue;
    for (int k = 0; k <= i; ++k) factor *= 1000;
    digits.pop_back();
  }
  const double most = static_cast<double>(kMostParameters) / factor;
  if (factor == 1) return command_line::to_whole(name, word, {1, kMostParameters});
  const double value = command_line::to_real(name, digits, {1 / factor, most});
  return static_cast<std::uint64_t>(value * factor + 0.5);
}

void add_options(CLI::App& app, Options& o) {
  app.footer(footer());
  app.add_option("MODEL", o.model, "Name, directory, or file of shapes")->type_name("");
  const auto add_count = [&](const char* name, std::uint64_t& to, const char* text) {
    app.add_option_function<std::string>(
           name, [&to, name](const std::string& word) { to = to_count(name, word); }, text)
        ->type_name("N");
  };
  add_count("--parameters", o.inputs.parameters,
            "Number of parameters, instead of MODEL: 2851M, 70B");
  add_count("--largest-layer", o.inputs.largest_layer, "Number of parameters of the largest layer");
  command_line::add_number(app, "--nodes", o.inputs.nodes, {1, 1'000'000}, "Machines [1]");
  command_line::add_number(app, "--gpus", o.inputs.gpus_per_node, {1, 1024}, "GPUs per node [1]");
  command_line::add_real(app, "--buffer-factor", o.inputs.buffer_factor, {1, 100},
                         "Factor of the estimators for host memory [1.5]");
  app.add_option("--config,--settings", o.config,
                 "Settings file for the plan, which varies the placement")
      ->type_name("FILE");
  command_line::add_repeated(app, "--set", o.set,
                             "One setting, such as headrace.moments=8bit; may be repeated")
      ->type_name("KEY=VALUE");
  app.add_option("--json", o.json, "File for the report; - is stdout")->type_name("FILE");
}

void check(const Options& o) {
  const bool counted = o.inputs.parameters > 0 || o.inputs.largest_layer > 0;
  if (o.model.empty() && !counted)
    throw command_line::Fault{"MODEL is missing", "Name a model, or give --parameters"};
  if (!o.model.empty() && counted)
    throw command_line::Fault{"MODEL beside --parameters or --largest-layer", "Give one of both"};
  if (counted && o.inputs.parameters == 0)
    throw command_line::Fault{"--largest-layer without --parameters", "Give both"};
  if (o.inputs.largest_layer > o.inputs.parameters)
    throw command_line::Fault{"--largest-layer is larger than --parameters",
                              "The largest layer is a part of the model"};
  command_line::check_report_target(o.json);
}

int run(const Options& options) {
  Estimation e;
  e.inputs = options.inputs;
  if (!options.model.empty()) {
    Settings settings =
        options.config.empty()
            ? Settings::from_json(
                  R"({"bf16": {"enabled": "auto"}})", "no settings",
                  ReadOptions{.overrides = options.set, .for_auto = {"bf16.enabled=true"}})
            : Settings::from_file(options.config,
                                  ReadOptions{.overrides = options.set, .leave_auto_open = true});
    e.model = model_of(options.model);
    e.inputs.parameters = e.model->elements();
    e.inputs.largest_layer = e.model->largest_layer().elements;
    settings.resolve_batch(e.inputs.gpus_per_node * e.inputs.nodes, 1);
    e.no_plan = plan_refusal(*e.model, e.inputs, settings);
    if (e.no_plan.empty()) e.plans = planned(*e.model, e.inputs, settings);
    const Json words = Json::parse(settings.to_json())["headrace"];
    e.state = words["optimizer"].get<std::string>() + ", " + words["moments"].get<std::string>() +
              " moments, " +
              (settings.fp16 ? "fp16 weights, f32" : words["master"].get<std::string>()) +
              " masters";
    if (settings.durable_every > 0) e.state += "; with a store: all of it twice on NVMe";
  }
  e.stages = zero_stages(e.inputs);
  if (e.inputs.largest_layer > 0) e.estimates = zero_estimates(e.inputs);
  print_to(options.json == "-" ? stderr : stdout, "{}", estimation_text(e));
  Json report = document(kProgram);
  report.update(estimation_json(e));
  command_line::write_report(options.json, dump(report));
  return kDone;
}
}  // namespace

int estimate(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, kProgram);
  add_options(app, options);
  return run_subcommand({.program = kProgram,
                         .nothing_done = "nothing was computed",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options); },
                         .run = [&] { return run(options); }},
                        argc, argv);
}
}  // namespace headrace::tools
