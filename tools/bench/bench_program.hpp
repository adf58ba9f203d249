// SPDX-License-Identifier: Apache-2.0
// bench_program.hpp: parts that update_bench, drives_bench and adapter_bench share: from words to
// exit code, and the head of their reports.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "program/failing.hpp"
#include "program/machine.hpp"

namespace headrace::tools {
struct BenchProgram {
  const char* name;
  const char* description;
  const char* footer;
  const std::string& json;  // target of the report, once it is parsed
  std::function<void(CLI::App&)> add_options;
  std::function<void(const CLI::App&)> check;  // what was parsed; throws command_line::Fault, Error
  std::function<int()> run;                    // throws Error
};
int run_bench_program(const BenchProgram& bench, int argc, const char* const* argv);

// Stdout is for people, unless the document goes there.
std::FILE* out_beside(const std::string& json);

// Machine, build, configuration, and a warning a line.
std::string head_text(const std::vector<Fact>& config, const std::vector<std::string>& warnings);
// The same as the document's first keys.
Json head_json(const char* program, const std::vector<Fact>& config,
               const std::vector<std::string>& warnings);
}  // namespace headrace::tools
