// SPDX-License-Identifier: Apache-2.0
#include "bench_program.hpp"

#include "command_line/report_file.hpp"
#include "headrace/version.hpp"
#include "program/report_parts.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
int run_bench_program(const BenchProgram& bench, int argc, const char* const* argv) {
  CLI::App app(bench.description, bench.name);
  app.footer(bench.footer);
  // A wrapper may append its user's words to its own: the last one holds.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", std::string(bench.name) + " (headrace) " + headrace::version());
  bench.add_options(app);
  const auto check = [&] {
    bench.check(app);
    command_line::check_report_target(bench.json);
  };
  return run_subcommand({.program = bench.name,
                         .nothing_done = "nothing was measured",
                         .app = app,
                         .json = bench.json,
                         .check = check,
                         .run = bench.run,
                         .lost = "its rounds are lost, its files are gone. Measure fewer --rounds"},
                        argc, argv);
}

std::FILE* out_beside(const std::string& json) { return json == "-" ? stderr : stdout; }

std::string head_text(const std::vector<Fact>& config, const std::vector<std::string>& warnings) {
  std::string text = fact_lines("machine", machine_facts()) + fact_lines("build", build_facts()) +
                     fact_lines("config", config);
  for (const std::string& line : warnings) text += "WARNING: " + line + "\n";
  return text;
}

Json head_json(const char* program, const std::vector<Fact>& config,
               const std::vector<std::string>& warnings) {
  Json json = document(program);
  json["machine"] = to_object(machine_facts());
  json["build"] = to_object(build_facts());
  json["config"] = to_object(config);
  json["warnings"] = warnings;
  return json;
}
}  // namespace headrace::tools
