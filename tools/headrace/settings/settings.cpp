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
#include "settings/reference.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kProgram = "headrace settings";
constexpr const char* kDescription =
    "Settings files, in DeepSpeed's shape.\n\n"
    "  check FILE...   every fault of every file, with line and column; warnings; what is left "
    "\"auto\"\n"
    "  show FILE       the settings that hold, and where each value is from\n"
    "  explain KEY...  what a key does, its values and default; the end of its path is enough\n"
    "  schema          the JSON Schema, for editors: \"$schema\": \"FILE\" in a settings file\n";
constexpr const char* kFooter =
    "\nNothing is started, and no path is tried: `headrace doctor PATH` does that.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused: usage, or a file with faults, 128+n ended "
    "by signal n.\n";

struct Options {
  std::string action, json;
  std::vector<std::string> words, set;
};

void check(const Options& o) {
  constexpr std::string_view kActions[] = {"check", "show", "explain", "schema"};
  if (std::ranges::find(kActions, o.action) == std::end(kActions)) {
    throw command_line::Fault{
        o.action.empty() ? "an action is missing" : "'" + o.action + "' is no action",
        "Give check, show, explain or schema"};
  }
  const bool needs_words = o.action != "schema";
  if (needs_words && o.words.empty())
    throw command_line::Fault{o.action + " of nothing",
                              o.action == "explain" ? "Name a key" : "Name a settings file"};
  if (o.action == "show" && o.words.size() > 1)
    throw command_line::Fault{"show takes one file", "Give the others to runs of their own"};
  if (!needs_words && !o.words.empty())
    throw command_line::Fault{"schema takes no words", "Leave them out"};
  const bool reads = o.action == "check" || o.action == "show";
  if (!reads && !o.set.empty())
    throw command_line::Fault{"--set with " + o.action + " would change nothing", "Leave it out"};
  if (!reads && !o.json.empty())
    throw command_line::Fault{"--json with " + o.action + " has no report", "Leave it out"};
  command_line::check_report_target(o.json);
}

ReadOptions read_options(const Options& o) { return {.overrides = o.set, .leave_auto_open = true}; }

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
      print_to(out, "{}: ok\n", path);
      for (const std::string& warning : settings.warnings)
        print_to(out, "  warning: {}\n", warning);
      for (const std::string& key : settings.open)
        print_to(out, "  open: {} is \"auto\", for the trainer to fill in\n", key);
      file["warnings"] = settings.warnings;
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
  if (o.action == "schema") {
    print("{}", headrace::settings::settings_schema());
    return kDone;
  }
  for (const std::string& key : o.words) print("{}", headrace::settings::explain(key));
  return kDone;
}
}  // namespace

int settings(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, kProgram);
  app.footer(kFooter);
  app.add_option("ACTION", options.action, "check, show, explain or schema")->type_name("");
  app.add_option("WORDS", options.words, "Files, or keys")->type_name("");
  app.add_option("--set", options.set, "A setting over the file's, a.b=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--json", options.json, "File for the report of check and show; - is stdout")
      ->type_name("FILE");
  return run_subcommand({.program = kProgram,
                         .nothing_done = "nothing was read",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options); },
                         .run = [&] { return run(options); }},
                        argc, argv);
}
}  // namespace headrace::tools
