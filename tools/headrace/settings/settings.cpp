// SPDX-License-Identifier: Apache-2.0
#include "settings/settings.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/exit_codes.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/subcommand.hpp"
#include "settings/init.hpp"
#include "settings_reference/reference.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kProgram = "headrace settings";
constexpr const char* kDescription =
    "Settings files, in DeepSpeed's shape.\n\n"
    "  check FILE...   every fault of every file, with line and column; warnings; what is left "
    "\"auto\"\n"
    "  show FILE       the settings that hold, and where each value is from\n"
    "  explain KEY...  what a key does, its values and default; the end of its path is enough\n"
    "  schema          the JSON Schema, for editors: \"$schema\": \"FILE\" in a settings file\n"
    "  init            a settings file for this machine, and for a model if one is named\n";
constexpr const char* kFooter =
    "\nIt starts nothing. Only init tries paths, as `headrace doctor PATH` does.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused: usage, or a file with faults, 128+n ended "
    "by signal n.\n";

struct Options {
  std::string action, json;
  std::vector<std::string> words, set;
  bool strict = false;
  InitOptions init;
};

void check(const Options& o) {
  constexpr std::string_view kActions[] = {"check", "show", "explain", "schema", "init"};
  if (std::ranges::find(kActions, o.action) == std::end(kActions)) {
    throw command_line::Fault{
        o.action.empty() ? "an action is missing" : "'" + o.action + "' is no action",
        "Give check, show, explain, schema or init"};
  }
  const bool inits = o.action == "init", needs_words = o.action != "schema" && !inits;
  if (needs_words && o.words.empty())
    throw command_line::Fault{o.action + " of nothing",
                              o.action == "explain" ? "Name a key" : "Name a settings file"};
  if (o.action == "show" && o.words.size() > 1)
    throw command_line::Fault{"show takes one file", "Give the others to runs of their own"};
  if (!needs_words && !o.words.empty())
    throw command_line::Fault{
        o.action + " takes no words",
        inits ? "Name drives with --nvme, and a file with --write" : "Leave them out"};
  const InitOptions none;
  if (!inits &&
      (!o.init.drives.empty() || !o.init.model.empty() || !o.init.write.empty() ||
       o.init.batch != none.batch || o.init.sequence != none.sequence || o.init.checkpointing)) {
    throw command_line::Fault{"--nvme, --model, --batch, --seq, --checkpointing and --write with " +
                                  o.action + " would change nothing",
                              "Leave them out, or init"};
  }
  if (inits && o.init.model.empty() && (o.init.sequence != none.sequence || o.init.checkpointing)) {
    throw command_line::Fault{"--seq and --checkpointing without --model would change nothing",
                              "Name a model"};
  }
  const bool reads = o.action == "check" || o.action == "show";
  if (!reads && !inits && !o.set.empty())
    throw command_line::Fault{"--set with " + o.action + " would change nothing", "Leave it out"};
  if (!reads && o.strict)
    throw command_line::Fault{"--strict with " + o.action + " would change nothing",
                              "Leave it out"};
  if (!reads && !inits && !o.json.empty())
    throw command_line::Fault{"--json with " + o.action + " has no report", "Leave it out"};
  command_line::check_report_target(o.json);
  command_line::check_targets_differ({{"--json", o.json}, {"--write", o.init.write}});
}

ReadOptions read_options(const Options& o) {
  return {.overrides = o.set, .leave_auto_open = true, .strict = o.strict};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

int check_files(const Options& o, std::FILE* out) {
  Json files = Json::array();
  std::size_t faulty = 0;
  for (const std::string& path : o.words) {
    Json file = {{"path", path}, {"ok", true}};
    try {
      const Settings settings = Settings::from_file(path, read_options(o));
      const auto dtype = settings.parameter_dtype();
      print_to(out, "{}: ok\n  parameters: {}\n", path,
               dtype ? name_of(*dtype) : "of the dtype that the trainer has");
      for (const std::string& warning : settings.warnings)
        print_to(out, "  warning: {}\n", warning);
      for (const std::string& line : settings.defaults_taken)
        print_to(out, "  default: {}\n", line);
      for (const std::string& key : settings.open)
        print_to(out, "  open: {} is \"auto\", for the trainer to fill in\n", key);
      file["parameter_dtype"] = dtype ? Json(name_of(*dtype)) : Json();
      file["warnings"] = settings.warnings;
      file["defaults_taken"] = settings.defaults_taken;
      file["open"] = settings.open;
    } catch (const Error& error) {
      ++faulty;
      file["ok"] = false;
      file["faults"] = lines_of(error.what());
      print_to(out, "{}: refused\n", path);
      for (const std::string& line : lines_of(error.what())) print_to(out, "  {}\n", line);
    }
    files.push_back(std::move(file));
  }
  if (o.words.size() > 1) print_to(out, "{} of {} files are refused\n", faulty, o.words.size());
  Json report = document(kProgram);
  report["files"] = std::move(files);
  command_line::write_report(o.json, dump(report));
  return faulty > 0 ? kRefused : kDone;
}

int show(const Options& o, std::FILE* out) {
  const headrace::settings::EffectiveSettings effective =
      headrace::settings::read_effective_file(o.words[0], read_options(o));
  std::size_t width = 0, values = 0;
  for (const auto& one : effective.values) {
    width = std::max(width, one.key.size());
    values = std::max(values, std::min<std::size_t>(one.value.size(), 30));
  }
  Json rows = Json::array();
  for (const auto& one : effective.values) {
    print_to(out, "{:<{}}  {:<{}}  {}\n", one.key, width, one.value, values, one.origin);
    rows.push_back({{"key", one.key}, {"value", Json::parse(one.value)}, {"origin", one.origin}});
  }
  for (const std::string& warning : effective.settings.warnings)
    print_to(out, "warning: {}\n", warning);
  for (const std::string& key : effective.settings.open)
    print_to(out, "open: {} is \"auto\", for the trainer to fill in\n", key);
  Json report = document(kProgram);
  report["settings"] = std::move(rows);
  report["warnings"] = effective.settings.warnings;
  report["open"] = effective.settings.open;
  command_line::write_report(o.json, dump(report));
  return kDone;
}

int run(const Options& o) {
  std::FILE* const out = o.json == "-" ? stderr : stdout;
  if (o.action == "check") return check_files(o, out);
  if (o.action == "show") return show(o, out);
  if (o.action == "init") {
    Json report = document(kProgram);
    // The file alone may go to stdout.
    InitOptions init = o.init;
    init.set = o.set;
    const bool to_stdout = init.write.empty() || init.write == "-";
    init_settings(init, out, to_stdout ? stderr : out, report);
    command_line::write_report(o.json, dump(report));
    return kDone;
  }
  if (o.action == "schema") {
    print("{}", headrace::settings::settings_schema());
    return kDone;
  }
  for (const std::string& key : o.words) print("{}", headrace::settings::explain(key));
  return kDone;
}

void add_init_options(CLI::App& app, InitOptions& init) {
  const char* const group = "With init";
  command_line::add_repeated(
      app, "--nvme", init.drives,
      "Directory on a drive for what does not fit in memory; may be repeated")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--model", init.model,
                 "Has to fit: name, directory or file, as headrace plan takes them")
      ->type_name("MODEL")
      ->group(group);
  command_line::add_number(app, "--batch", init.batch, {1, 1u << 20},
                           "Sequences per micro-batch, also for the file")
      ->group(group);
  command_line::add_number(app, "--seq", init.sequence, {1, 1u << 24},
                           "Tokens of a sequence [2048, or as many as the model has positions]")
      ->group(group);
  app.add_flag("--checkpointing", init.checkpointing, "Activations are computed again in backward")
      ->group(group);
  app.add_option("--write", init.write, "File for the settings [stdout]")
      ->type_name("FILE")
      ->group(group);
}
}  // namespace

int settings(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, kProgram);
  app.footer(kFooter);
  app.add_option("ACTION", options.action, "check, show, explain, schema or init")->type_name("");
  app.add_option("WORDS", options.words, "Files, or keys")->type_name("");
  command_line::add_repeated(
      app, "--set", options.set,
      "A setting over the file's, or with init into it, a.b=value; may be repeated")
      ->type_name("KEY=VALUE");
  app.add_flag("--strict", options.strict,
               "check, show: an unknown key that DeepSpeed ignores is a fault too");
  app.add_option("--json", options.json, "File for the report of check, show and init; - is stdout")
      ->type_name("FILE");
  add_init_options(app, options.init);
  return run_subcommand({.program = kProgram,
                         .nothing_done = "nothing was read",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options); },
                         .run = [&] { return run(options); }},
                        argc, argv);
}
}  // namespace headrace::tools
