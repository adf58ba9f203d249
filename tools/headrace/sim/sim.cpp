// SPDX-License-Identifier: Apache-2.0
#include "sim/sim.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "plan/advice.hpp"
#include "plan/scenario_options.hpp"
#include "program/output.hpp"
#include "program/subcommand.hpp"
#include "sim/report.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kProgram = "headrace sim";
constexpr const char* kDescription =
    "Simulates the training of a model in worlds of several sizes, up to thousands of GPUs: what a "
    "step takes,\nwhat limits it, how it scales, and the network that it needs. Measures and "
    "allocates nothing. The memory is\nthe planner's, and the step that of headrace plan. "
    "With --published, it simulates what was published of\nZeRO-Infinity, and shows both.\n";
constexpr std::uint32_t kMostRanks = 512;

struct Options {
  ScenarioOptions scenario;
  std::vector<std::uint32_t> nodes;
  bool published = false;
  std::string json;
};

std::string footer() {
  return known_names_text() +
         "\nExit codes: 0 a world fits, 1 the run failed, 2 refused, or none fits, 128+n ended "
         "by signal n.\n";
}

std::vector<std::uint32_t> node_counts(const std::string& words) {
  constexpr std::ptrdiff_t kMostWorlds = 64;
  if (std::ranges::count(words, ',') >= kMostWorlds) {
    throw command_line::Fault{fmt::format("--nodes has more than {} worlds", kMostWorlds),
                              "Give fewer"};
  }
  std::vector<std::uint32_t> counts;
  for (std::size_t at = 0; at <= words.size();) {
    const std::size_t comma = std::min(words.find(',', at), words.size());
    counts.push_back(static_cast<std::uint32_t>(
        command_line::to_whole("--nodes", words.substr(at, comma - at), {1, 65'536})));
    at = comma + 1;
  }
  return counts;
}

void add_options(CLI::App& app, Options& o) {
  app.footer(footer());
  add_scenario_options(app, o.scenario);
  app.add_option_function<std::string>(
         "--nodes", [&o](const std::string& words) { o.nodes = node_counts(words); },
         "Machines of each world [1,2,4,... up to 512 ranks]")
      ->type_name("N,N,...");
  app.add_flag("--published", o.published, "ZeRO-Infinity's published points; takes no MODEL");
  app.add_option("--json", o.json, "File for the report; - is stdout")->type_name("FILE");
}

// All but --json would change nothing.
void check_published(const CLI::App& app) {
  for (const CLI::Option* const option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--published" || name == "--json") continue;
    throw command_line::Fault{
        "--published has models and machines of its own, and " + name + " would change nothing",
        "Give --published and --json alone"};
  }
}

void check(const Options& o, const CLI::App& app) {
  if (o.published) {
    check_published(app);
  } else {
    check_scenario(o.scenario);
  }
  command_line::check_report_target(o.json);
}

int report(const Options& o, int exit_code, const std::string& text, const Json& parts) {
  print_to(o.json == "-" ? stderr : stdout, "{}", text);
  Json json = document(kProgram);
  json["exit_code"] = exit_code;
  json.update(parts);
  command_line::write_report(o.json, dump(json));
  return exit_code;
}

int run(const Options& o) {
  Planning planning;
  if (o.published) {
    const PublishedResult result = simulate_published(planning);
    return report(o, kDone, published_text(result), published_json(result));
  }
  const Scenario scenario = scenario_without_batch(o.scenario);
  const std::vector<World> worlds = worlds_of(
      planning, scenario, o.nodes.empty() ? doubling_nodes(scenario, kMostRanks) : o.nodes);
  if (std::ranges::any_of(worlds, &World::fits))
    return report(o, kDone, worlds_text(worlds), worlds_json(worlds));
  const std::string change = smallest_change(planning, worlds.back().scenario);
  const std::string help = change.empty() ? "No change that was tried would help the last one."
                                          : "For the last one, " + change + ".";
  Json json = worlds_json(worlds);
  json["error"] = {{"exit_code", kRefused},
                   {"code", code_name(Code::kOutOfBudget)},
                   {"message", "no world fits. " + help}};
  return report(o, kRefused, "No world fits. " + help + "\n\n" + worlds_text(worlds), json);
}
}  // namespace

int sim(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, kProgram);
  add_options(app, options);
  return run_subcommand({.program = kProgram,
                         .nothing_done = "nothing was simulated",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options, app); },
                         .run = [&] { return run(options); }},
                        argc, argv);
}
}  // namespace headrace::tools
