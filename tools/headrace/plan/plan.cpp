// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.hpp"

#include <CLI/CLI.hpp>
#include <string>

#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "plan/report_json.hpp"
#include "plan/scenario_options.hpp"
#include "program/output.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kProgram = "headrace plan";
constexpr const char* kDescription =
    "Shows whether a model fits a machine, where its state would live, how long a step takes, what "
    "limits it, and\nwhich single change would help most. Measures and allocates nothing. "
    "MODEL is a name, a directory with\nsafetensors or config.json, or a JSON file of shapes. "
    "The engine's own planner computes the memory.\n";

struct Options {
  ScenarioOptions scenario;
  std::string json;
};

std::string footer() {
  return known_names_text() +
         "\nExit codes: 0 it fits, 1 the run failed, 2 refused, or it does not fit, 128+n ended "
         "by signal n.\n";
}

void add_options(CLI::App& app, Options& o) {
  app.footer(footer());
  add_scenario_options(app, o.scenario);
  command_line::add_number(app, "--nodes", o.scenario.nodes, {1, 1'000'000}, "Machines [1]");
  command_line::add_replaced(app, "--report", page_of_json());
  app.add_option("--json", o.json, "File for the report; - is stdout")->type_name("FILE");
}

void check(const Options& o) {
  check_scenario(o.scenario);
  command_line::check_report_target(o.json);
}

int run(const Options& options) {
  Planning planning;
  PlanResult result;
  result.scenario = scenario_for(options.scenario);
  result.outcome = planning.evaluate(result.scenario, Spans::kKeep);
  const bool fits = result.outcome.fits();
  if (fits) {
    result.changes = changes_of(planning, result.scenario, result.outcome);
  } else {
    result.smallest_change = smallest_change(planning, result.scenario);
  }
  const int exit_code = fits ? kDone : kRefused;
  print_to(options.json == "-" ? stderr : stdout, "{}", plan_text(result));
  Json report = document(kProgram);
  report["exit_code"] = exit_code;
  report.update(plan_json(result));
  if (!fits) {
    report["error"] = {{"exit_code", exit_code},
                       {"code", code_name(Code::kOutOfBudget)},
                       {"message", first_line(result)}};
  }
  report["plans_made"] = planning.plans();
  if (!options.json.empty()) report["steps_by_batch"] = steps_by_batch_json(result, planning);
  command_line::write_report(options.json, dump(report));
  return exit_code;
}
}  // namespace

int plan(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, kProgram);
  add_options(app, options);
  return run_subcommand({.program = kProgram,
                         .nothing_done = "nothing was planned",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options); },
                         .run = [&] { return run(options); }},
                        argc, argv);
}
}  // namespace headrace::tools
