// SPDX-License-Identifier: Apache-2.0
#include "doctor/doctor.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "doctor/report.hpp"
#include "doctor/requirements.hpp"
#include "doctor/rows.hpp"
#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/settings.hpp"
#include "model/model.hpp"
#include "program/output.hpp"
#include "program/signals.hpp"
#include "program/subcommand.hpp"
#include "settings/drive_path.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kProgram = "headrace doctor";
constexpr const char* kDescription =
    "Shows what this machine offers for offloading, and tests the I/O queues and, at each PATH, "
    "O_DIRECT.\nChanges nothing, leaves no file behind and needs no privileges. A fact that needs "
    "more rights is marked\nunknown.\n\nok: works as it should.  note: works, but slower or less "
    "than it could.  gap: does not work.\n";

struct Options {
  std::vector<std::string> paths, set;
  std::string json, require, settings, model;
  bool ranks = false;
};

const char* variable_of_environment(const char* name) { return std::getenv(name); }

// Of several ranks one is enough: they say the same of a machine.
bool speaks(const Options& options) {
  if (!options.ranks) return true;
  try {
    return find_launch().rank == 0;
  } catch (const Error&) {  // the section says so
    return true;
  }
}

std::string footer() {
  return "\n--require NAME,...: " + requirement_names() +
         "\n\nExit codes: 0 done, with or without gaps, 1 the run failed, 2 refused before it "
         "started, 3 a --require\nis not met, 128+n ended by signal n.\n";
}

void check_paths(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      throw command_line::Fault{
          fmt::format("PATH '{}' cannot be reached: {}", path, base::errno_text(errno)),
          "Name a directory that exists"};
    }
    if (!S_ISDIR(status.st_mode)) {
      throw command_line::Fault{fmt::format("PATH '{}' is not a directory", path),
                                "Name the directory that swap files would lie in"};
    }
  }
}

// Those of an engine, as far as they are given. Without a file their paths are those of the line.
Settings settings_of(const Options& o) {
  const ReadOptions options{.overrides = o.set, .leave_auto_open = true};
  if (!o.settings.empty()) return Settings::from_file(o.settings, options);
  if (o.set.empty()) return {};
  Json file = Json::object();
  const bool placed = std::ranges::any_of(
      o.set, [](const std::string& one) { return one.find("nvme_path") != std::string::npos; });
  for (const std::string& path : o.paths)
    if (!placed) file["headrace"]["nvme_paths"].push_back(settings::escape_path(path));
  return Settings::from_json(dump(file), "the line", options);
}

// What is looked at, and for which engine.
struct Wanted {
  Settings settings;
  std::uint64_t parameters = 0;  // of --model
  std::vector<Requirement> required;
};

Wanted check(Options& options) {
  Wanted wanted;
  wanted.required = parse_requirements(options.require);
  wanted.settings = settings_of(options);
  if (options.paths.empty()) options.paths = wanted.settings.nvme_paths;
  if (options.paths.empty()) options.paths = {"."};
  check_paths(options.paths);
  if (!options.model.empty() && wanted.settings.durable_every == 0) {
    throw command_line::Fault{"--model is for the room of a store, and none is asked for",
                              "Give --settings with headrace.durable, or leave it out"};
  }
  if (!options.model.empty()) wanted.parameters = model_of(options.model).elements();
  command_line::check_report_target(options.json);
  return wanted;
}

std::vector<Section> look(const Options& options, const Wanted& wanted) {
  std::vector<Section> sections;
  const auto add = [&](Section section) {
    check_signal();
    sections.push_back(std::move(section));
  };
  add(system_section());
  add(processor_section());
  add(memory_section());
  add(queue_section());
  for (const std::string& path : options.paths) add(path_section(path));
  if (wanted.settings.durable_every > 0)
    add(store_section(wanted.settings, options.paths, wanted.parameters));
  add(gpu_section());
  if (options.ranks) add(ranks_section(variable_of_environment));
  return sections;
}

int run(const Options& options, const Wanted& wanted) {
  const std::vector<Section> sections = look(options, wanted);
  const std::vector<Missed> missed = missed_requirements(wanted.required, sections);
  const int exit_code = missed.empty() ? kDone : kLacking;
  if (!speaks(options)) return exit_code;
  const bool json_on_stdout = options.json == "-";
  if (!json_on_stdout) print("{}", sections_text(sections, colour_of_stdout()));
  for (const Missed& one : missed) {
    tell("{}: {} is required, found: {}; what asked for it should not start. {}.\n", kProgram,
         one.required, one.found, one.fix);
  }
  Json report = document(kProgram);
  report["exit_code"] = exit_code;
  report.update(sections_json(sections));
  if (!wanted.required.empty()) report["missed"] = missed_json(missed);
  command_line::write_report(options.json, dump(report));
  return exit_code;
}
}  // namespace

int doctor(int argc, const char* const* argv) {
  Options options;
  Wanted wanted;
  CLI::App app(kDescription, kProgram);
  app.footer(footer());
  app.add_option("PATH", options.paths,
                 "Directories for swap files [the settings' nvme_path, or the current one]")
      ->type_name("");
  app.add_option("--settings,--config", options.settings,
                 "Settings file of an engine: also looks at the store of headrace.durable")
      ->type_name("FILE");
  command_line::add_repeated(app, "--set", options.set, "One setting; may be repeated")
      ->type_name("KEY=VALUE");
  app.add_option("--model", options.model, "Model that the store is to have room for")
      ->type_name("MODEL");
  app.add_flag("--ranks", options.ranks,
               "Also what a launcher of ranks says here, and what would carry their bytes");
  app.add_option("--json", options.json, "File for the report; - is stdout")->type_name("FILE");
  app.add_option("--require", options.require, "Exit with 3 unless these are met")
      ->type_name("LIST");
  return run_subcommand({.program = kProgram,
                         .nothing_done = "nothing was looked at",
                         .app = app,
                         .json = options.json,
                         .check = [&] { wanted = check(options); },
                         .run = [&] { return run(options, wanted); }},
                        argc, argv);
}
}  // namespace headrace::tools
